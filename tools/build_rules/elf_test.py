# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from tools.build_rules import elf


def test_versions_up_to_the_newest_allowed_are_not_too_new(monkeypatch):
    everything = (9, 9)
    monkeypatch.setattr(elf, "NEWEST", dict.fromkeys(elf.NEWEST, everything))
    assert any(version.startswith("GLIBC_2.") for version in elf.versions_needed(sys.executable))
    assert elf.too_new(sys.executable) == []


@pytest.mark.parametrize("newest", [(2, 2), (2, 2, 4)])
def test_versions_beyond_the_newest_allowed_are_named(monkeypatch, newest):
    monkeypatch.setitem(elf.NEWEST, "GLIBC", newest)
    assert "GLIBC_2.34" in elf.too_new(sys.executable)


def test_a_version_without_a_number_is_too_new(monkeypatch):
    """GLIBC_PRIVATE belongs to one build of glibc."""
    monkeypatch.setattr(
        elf, "versions_needed", lambda _: {"GLIBC_PRIVATE", "GLIBC_2.34", "OPENSSL_3.0.0"}
    )
    assert elf.too_new("any") == ["GLIBC_PRIVATE"]


def test_only_elf_files_are_found(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh")
    (tmp_path / "empty").touch()
    (tmp_path / "program").write_bytes(b"\x7fELF...")
    (tmp_path / "link").symlink_to("program")
    assert elf.elf_files(tmp_path) == [tmp_path / "program"]
