# SPDX-License-Identifier: Apache-2.0
"""Lays out the bundle; the rule gpu_bundle runs it.

usage: make_bundle.py --out DIR --wheel DIR --license FILE [--program FILE]... [--compiled-in PACKAGE]... [PLACE=FILE]...

DIR gets programs.zip, with the programs in programs/, the libraries that they need in lib/, and those that every
Linux with a C++ compiler has in runtime/. It also gets the wheel, each FILE at its PLACE, and the licences in
third_party/.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from tools.build_rules import notices
from tools.build_rules.bundled_libraries import bundle

# Beside glibc's; not every image for containers has them.
RUNTIME = ("libgcc_s.so.1", "libstdc++.so.6", "libz.so.1")


def install(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def pack(folder, archive):
    """The same bytes for the same files, whenever it is done."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(str(path.relative_to(folder)))  # Of 1980.
                packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def runtime_of(program):
    """Returns where this machine has those of RUNTIME that the program needs."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"^\s*(\S+) => (/.+) \(0x", said, re.M))
    return {name: Path(found[name]) for name in RUNTIME if name in found}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--license", type=Path, required=True)
    parser.add_argument("--program", type=Path, action="append", default=[])
    parser.add_argument("--compiled-in", action="append", default=[])
    parser.add_argument("places", nargs="*")
    arguments = parser.parse_args()
    out = arguments.out

    packages = set(arguments.compiled_in)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        for source in arguments.program:
            for name, library in runtime_of(source).items():
                install(library, top / "runtime" / name)
                packages |= notices.packages_of([library])
            target = top / "programs" / source.name
            install(source, target, 0o755)
            subprocess.run(["strip", target], check=True)
            packages |= notices.packages_of(bundle(target, top / "lib"))
        out.mkdir(parents=True, exist_ok=True)
        pack(top, out / "programs.zip")
    for place in arguments.places:
        inside, _, source = place.partition("=")
        install(source, out / inside, 0o755 if inside == "run" else 0o644)
    (wheel,) = arguments.wheel.glob("*.whl")
    install(wheel, out / wheel.name)
    install(arguments.license, out / "LICENSE")
    for package in packages:
        notice = out / "third_party" / package
        notice.parent.mkdir(exist_ok=True)
        notice.write_bytes(notices.of_package(package))


if __name__ == "__main__":
    main()
