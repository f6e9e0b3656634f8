# SPDX-License-Identifier: Apache-2.0
"""The wheel is the same, byte for byte, wherever and whenever it is made, and names no place of its maker's."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

# Of whoever built it; a template of gRPC's is no such place.
PLACES = (b"/root/", b"/home/", b"/tmp/", b"execroot", b"-sandbox", bytes(Path.cwd()))
TEMPLATES = (b"/tmp/%s_XXXXXX",)


@pytest.fixture(scope="module")
def made_by_the_rule():
    (wheel,) = Path("bindings/python/wheel").glob("*.whl")
    return wheel


def places():
    """What the rule puts where; each file is a copy, so that it has another path, owner and time."""
    package = Path("bindings/python")
    names = [
        p for p in package.glob("waybill/**/*") if p.suffix in {".py", ".pyi", ".so", ".typed"}
    ]
    found = {str(path.relative_to(package)): path for path in names}
    found["waybill/libwaybill.so.0"] = Path("capi/libwaybill.so.0")
    found["waybill/bin/waybill"] = Path("tools/waybill/waybill")
    found["LICENSE"] = Path("LICENSE")
    return {place: path for place, path in found.items() if not path.stem.endswith("_test")}


def test_it_is_the_same_made_elsewhere_at_another_time(made_by_the_rule, tmp_path):
    tool = Path("tools/build_rules/build_wheel").absolute()
    elsewhere = tmp_path / "so müde"
    elsewhere.mkdir()
    arguments = []
    for index, (place, path) in enumerate(sorted(places().items(), reverse=True)):
        copy = elsewhere / f"file{index}"
        shutil.copyfile(path, copy)
        os.utime(copy, (1e9 + index, 1e9 + index))
        arguments.append(f"{place}={copy}")
    pyproject = Path("bindings/python/pyproject.toml").absolute()
    options = ["--out", "made", "--pyproject", pyproject]
    for package in ("nlohmann-json3-dev", "libcli11-dev"):
        options += ["--compiled-in", package]
    environment = {
        **os.environ,
        "TZ": "Pacific/Chatham",
        "LC_ALL": "C",
        "HOME": str(tmp_path),
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1000000000",
    }
    run = subprocess.run(
        [tool, *options, *arguments],
        cwd=elsewhere,
        env=environment,
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    again = elsewhere / "made" / made_by_the_rule.name
    with zipfile.ZipFile(made_by_the_rule) as one, zipfile.ZipFile(again) as other:
        assert one.namelist() == other.namelist()
        for name in one.namelist():
            assert one.read(name) == other.read(name), name
    assert made_by_the_rule.read_bytes() == again.read_bytes()


def test_no_file_in_it_names_a_place_of_its_makers(made_by_the_rule):
    with zipfile.ZipFile(made_by_the_rule) as wheel:
        for name in wheel.namelist():
            data = wheel.read(name)
            for template in TEMPLATES:
                data = data.replace(template, b"")
            for place in PLACES:
                at = data.find(place)
                assert at < 0, f"{name}: {data[max(0, at - 40) : at + 80]!r}"
