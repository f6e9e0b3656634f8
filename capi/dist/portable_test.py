# SPDX-License-Identifier: Apache-2.0
"""The SDK runs on every Linux since RHEL 9 and Ubuntu 22.04: it brings what it needs beside the system's own libraries."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from tools.build_rules.elf import elf_files, too_new
from tools.build_rules.notices import libraries_of


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    """The tarball, unpacked."""
    (tarball,) = Path("capi/dist").glob("waybill-*.tar.gz")
    folder = tmp_path_factory.mktemp("somewhere else")
    with tarfile.open(tarball) as files:
        files.extractall(folder)
    return folder / tarball.name.removesuffix(".tar.gz")


def test_it_is_small():
    (tarball,) = Path("capi/dist").glob("waybill-*.tar.gz")
    assert tarball.stat().st_size <= 10_000_000


def test_no_file_needs_a_newer_system_than_rhel_9(sdk):
    files = elf_files(sdk)
    assert sdk / "lib/libwaybill.so.0" in files
    assert {file.name: too_new(file) for file in files if too_new(file)} == {}


def test_every_library_that_is_not_of_the_system_is_its_own(sdk):
    for file in elf_files(sdk):
        said = subprocess.check_output(["ldd", file], text=True)
        assert "not found" not in said, (file, said)
        for library in libraries_of(file).values():
            assert Path(library).resolve().is_relative_to(sdk / "lib/waybill"), (file, library)


def test_no_library_is_called_as_one_of_the_system(sdk):
    """A process that has the system's gRPC too would otherwise get one of the two for both."""
    for file in (sdk / "lib/waybill").iterdir():
        assert not Path("/usr/lib/x86_64-linux-gnu", file.name).exists(), file
