# SPDX-License-Identifier: Apache-2.0
"""The header and the library, held to what was recorded of them."""

import pathlib
import re
import subprocess

import header
import pytest

HEADER = pathlib.Path("capi/waybill.h")
LIBRARY = pathlib.Path("capi/libwaybill.so.0")
SYMBOLS = pathlib.Path("capi/abi/waybill.symbols").read_text().split()
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported():
    return [line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines()]


def test_the_library_exports_what_is_recorded_and_nothing_else():
    stanzas = {name for name in exported() if re.fullmatch(r"WAYBILL_\d+\.\d+", name)}
    assert sorted(set(exported()) - stanzas) == sorted(SYMBOLS)


def test_the_header_declares_what_is_recorded_and_nothing_else():
    assert header.functions(HEADER.read_text()) == sorted(s.split("@@")[0] for s in SYMBOLS)


def test_the_library_needs_no_path_and_has_its_soname():
    dynamic = run("readelf", "-d", LIBRARY)
    assert "Library soname: [libwaybill.so.0]" in dynamic
    assert "RPATH" not in dynamic and "SYMBOLIC" in dynamic


def test_the_library_is_at_most_4_mebibytes_stripped(tmp_path):
    stripped = tmp_path / "stripped.so"
    run("strip", "-o", stripped, LIBRARY.resolve())
    assert stripped.stat().st_size <= 4 * 2**20


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"),
    [("gcc", "c99", "c"), ("gcc", "c17", "c"), ("g++", "c++17", "cc"), ("g++", "c++20", "cc")],
)
def test_the_header_stands_alone_and_twice(compiler, standard, suffix, tmp_path):
    source = tmp_path / f"twice.{suffix}"
    headers = ["waybill.h"] * 2 + (["waybill.hpp"] * 2 if suffix == "cc" else [])
    source.write_text("".join(f'#include "capi/{name}"\n' for name in headers))
    run(compiler, f"-std={standard}", *STRICT, "-c", source, "-o", tmp_path / "twice.o")


def test_sizes_offsets_and_constants_are_those_of_the_golden_file(tmp_path):
    golden = pathlib.Path("capi/abi/waybill.layout").read_text()
    assert header.layout(HEADER.read_text(), tmp_path) == golden, (
        "the ABI has changed; where it only grew, record it: "
        "bazel run //capi/abi:print_layout > capi/abi/waybill.layout"
    )
