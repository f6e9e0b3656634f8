# SPDX-License-Identifier: Apache-2.0
"""Reads ELF files: which there are in a folder, and which versions of the system's libraries they need."""

from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

# The newest versions that RHEL 9 has: glibc 2.34, and the libraries of GCC 11. Ubuntu 22.04 has newer ones.
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(folder):
    """Returns every program and shared library below the folder, sorted. Links are left out."""
    files = (path for path in sorted(Path(folder).rglob("*")) if not path.is_symlink())
    return [path for path in files if path.is_file() and is_elf(path)]


def versions_needed(path):
    """Returns the symbol versions that an ELF file needs of other libraries: {"GLIBC_2.34", ...}."""
    with open(path, "rb") as file:
        return {
            version.name
            for section in ELFFile(file).iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, versions in section.iter_versions()
            for version in versions
        }


def too_new(path):
    """Returns those of versions_needed() that a system of NEWEST lacks, sorted."""

    def is_too_new(version):
        family, _, number = version.partition("_")
        if family not in NEWEST:
            return False  # A library that comes along; it has the version that its own user was linked to.
        digits = number.replace(".", "")
        return not digits.isdigit() or tuple(map(int, number.split("."))) > NEWEST[family]

    return sorted(filter(is_too_new, versions_needed(path)))
