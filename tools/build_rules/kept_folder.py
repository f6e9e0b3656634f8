# SPDX-License-Identifier: Apache-2.0
"""A folder that outlives an action, for a compiler that would else begin from nothing in every sandbox.

It is in /tmp, which the sandbox lets actions write to. Its name holds all that decides whether what lies
there is of use: the caller passes it.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path


def checksum(*parts):
    """Short; of texts and of files' contents."""
    total = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:16]


def copy_anew(source, target):
    """Not the times: a compiler would take a file that another checkout has older for one it knows."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=shutil.copyfile)


def unpack_anew(archive, target):
    """Lays out what is below the one folder at the archive's top. Its files are new, for the reason above."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tarfile.open(archive) as files:
        for entry in files.getmembers():
            entry.name = entry.name.partition("/")[2] or "."
            entry.mtime = time.time()
            files.extract(entry, target)


def _mine_alone(folder):
    """Anyone may make any name in /tmp: trust only what nobody else can write to."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextmanager
def _top():
    top = Path(f"/tmp/waybill-kept-{os.getuid()}")
    if _mine_alone(top):
        yield top
    else:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            yield Path(folder)


@contextmanager
def kept_folder(name):
    """The folder of that name, and nobody else's until the end; where /tmp is no place, one that goes."""
    with _top() as top:
        folder = top / name
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
