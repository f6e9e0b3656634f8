# SPDX-License-Identifier: Apache-2.0
"""The licences of what a wheel or an SDK brings along, as the distribution's packages have them."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

# What every Linux has; auditwheel leaves it out.
OF_THE_SYSTEM = ("ld-linux", "libc.", "libgcc_s.", "libm.", "libstdc++.", "libz.", "linux-vdso")


def of_package(package):
    """The text that a package of the distribution, or of the build's Python, has of its licences."""
    notice = Path("/usr/share/doc", package, "copyright")
    if notice.exists():
        return notice.read_bytes()
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    texts = [file for file in files if "licenses" in file.parts]
    if not texts:
        sys.exit(f"{package}: neither {notice} nor a Python package tells of its licence")
    return b"\n".join(Path(file.locate()).read_bytes() for file in sorted(texts))


def libraries_of(binary):
    """What the loader would bring for it: {soname: path}, without what is the system's."""
    said = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s*(\S+) => (/.+) \(0x", said, re.M)
    return {name: path for name, path in found if not name.startswith(OF_THE_SYSTEM)}


def packages_of(libraries):
    """The packages of the distribution that have these libraries."""
    names = {Path(library).resolve().name for library in libraries}
    if not names:
        return set()
    command = ["dpkg-query", "--search", *sorted(f"*/{name}" for name in names)]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    # "libssl3:amd64: /usr/lib/x86_64-linux-gnu/libssl.so.3"
    owners = {
        path.rpartition("/")[2]: owner
        for owner, path in re.findall("^([^:,]+).*: (/.*)", said, re.M)
    }
    if missing := sorted(names - owners.keys()):
        sys.exit(f"dpkg-query knows no package that has {missing}, whose licence has to go along")
    return {owners[name] for name in names}
