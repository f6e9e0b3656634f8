# SPDX-License-Identifier: Apache-2.0
"""Lays out what programs outside this repository build against; the rule sdk runs it.

usage: make_sdk.py --out DIR --tarball FILE --name NAME --library FILE [--header FILE]...
                   [--template NAME=FILE]... --license FILE [--compiled-in PACKAGE]...

DIR gets include/NAME/, lib/ with the library and the link that the linker looks for, lib/NAME/ with the
libraries that it needs, except those that every Linux has, and each template at its place with @VERSION@
and @SONAME@ filled in. share/doc/NAME/ gets the licence, those of the libraries, and those of packages
that are compiled in. FILE gets the same, packed: the same bytes for the same input, whoever packs it and
when.
"""

import argparse
import gzip
import re
import shutil
import tarfile
from pathlib import Path

from tools.build_rules import notices
from tools.build_rules.bundled_libraries import bundle


def install(source, target, mode):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def install_headers(headers, out, name):
    """Headers include each other as <NAME/header.h>, whatever the folder is called in here."""
    for header in map(Path, headers):
        # bazel-out/<configuration>/bin/capi/x.h is known to others as "capi/x.h".
        own = re.compile(rf'#(\s*)include "{re.escape(header.parent.name)}/([^"]+)"')
        text = own.sub(rf"#\1include <{name}/\2>", header.read_text())
        target = out / "include" / name / header.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o644)


def install_library(library, out, name):
    """Returns the packages of the distribution whose libraries go along."""
    target = out / "lib" / library.name
    install(library, target, 0o755)
    link = target.with_name(library.name.partition(".so")[0] + ".so")
    link.symlink_to(target.name)
    return notices.packages_of(bundle(target, out / "lib" / name))


def fill_in(template, target, values):
    text = re.sub(r"@([A-Z]+)@", lambda word: values[word[1]], template.read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(0o644)


def install_notices(license_file, packages, folder):
    install(license_file, folder / "LICENSE", 0o644)
    for package in packages:
        notice = folder / "third_party" / package
        notice.parent.mkdir(exist_ok=True)
        notice.write_bytes(notices.of_package(package))
        notice.chmod(0o644)


def pack(folder, tarball, top):
    def anonymous(entry):
        if entry.isdir():
            entry.mode = 0o755  # Whatever the umask was.
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "root"
        return entry

    with (
        open(tarball, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in [folder, *sorted(folder.rglob("*"))]:
            inside = Path(top) / path.relative_to(folder)
            archive.add(path, inside, recursive=False, filter=anonymous)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tarball", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--template", action="append", default=[])
    parser.add_argument("--license", type=Path, required=True)
    parser.add_argument("--compiled-in", action="append", default=[])
    arguments = parser.parse_args()

    install_headers(arguments.header, arguments.out, arguments.name)
    packages = install_library(arguments.library, arguments.out, arguments.name)
    values = {"VERSION": arguments.version, "SONAME": arguments.library.name}
    for template in arguments.template:
        place, _, file = template.partition("=")
        fill_in(Path(file), arguments.out / place, values)
    notes = arguments.out / "share/doc" / arguments.name
    install_notices(arguments.license, {*packages, *arguments.compiled_in}, notes)
    pack(arguments.out, arguments.tarball, arguments.tarball.name.removesuffix(".tar.gz"))


if __name__ == "__main__":
    main()
