# SPDX-License-Identifier: Apache-2.0
"""What a drill takes away from the processes of its job: disk space, shared memory, descriptors.

Nothing outside of the drill is touched: the drill enters a mount namespace of its own, in which its disk
and /dev/shm are small, and limits only processes that it has started.
"""

import ctypes
import errno
import os
import resource
import subprocess

SHARED_MEMORY = "/dev/shm"
DISK_BYTES = 4 << 20
SHARED_MEMORY_BYTES = 1 << 20

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000


def enter_own_mounts():
    """Enters a new mount namespace. Must be called before the process has a second thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            raise SystemExit(
                "enter a mount namespace: unshare: "
                f"{os.strerror(ctypes.get_errno())}; drills need root or user namespaces "
                "(sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
            )
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _run("mount", "--make-rprivate", "/")


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


class SmallFolder:
    """A folder of a few MiB, which can be filled to the last byte."""

    def __init__(self, path, size_bytes):
        self.path = path
        self._filler = os.path.join(path, "filler")
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))

    def fill(self):
        with open(self._filler, "ab", buffering=0) as file:
            for size in (64 << 10, 4096):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self):
        if os.path.exists(self._filler):
            os.remove(self._filler)

    def close(self):
        _run("umount", "--lazy", str(self.path))


def _limit(pid, which, soft):
    """Lowers a limit of a process that runs. Returns a function that restores it."""
    before, hard = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (soft, hard))

    def restore():
        try:
            resource.prlimit(pid, which, (before, hard))
        except ProcessLookupError:
            pass  # It has ended meanwhile.

    return restore


def forbid_files(pid, beyond_bytes=0):
    """Forbids the process to write or allocate files beyond that size; memfds are files."""
    return _limit(pid, resource.RLIMIT_FSIZE, beyond_bytes)


def forbid_descriptors(pid):
    """Leaves the process the descriptors that it has, and no other."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    lowest_free = next(number for number in range(len(taken) + 1) if number not in taken)
    return _limit(pid, resource.RLIMIT_NOFILE, lowest_free)
