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
    found = re.findall(r"^\s*(\S+) => (/\S+)", said, re.M)
    return {name: path for name, path in found if not name.startswith(OF_THE_SYSTEM)}


def package_of(library):
    """Which package of the distribution has it."""
    file = Path(library).resolve()
    command = ["dpkg-query", "--search", f"*/{file.name}"]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    if said.returncode != 0:
        sys.exit(f"{library}: dpkg-query knows no package that has it; its licence is to go along")
    return re.split("[:,]", said.stdout.splitlines()[0])[0]
