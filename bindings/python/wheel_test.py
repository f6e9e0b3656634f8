# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed where there is nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools.build_rules.elf import elf_files, too_new

# What every Linux has, and a wheel may take from there.
OF_THE_SYSTEM = ("ld-linux", "libc.", "libgcc_s.", "libm.", "libstdc++.", "libz.")


SLOW_TO_IMPORT = {"asyncio", "dataclasses", "inspect", "json", "numpy", "torch"}
MOST_BYTES = 12_600_000


@pytest.fixture(scope="module")
def wheel():
    (wheel,) = Path("bindings/python/wheel").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """A virtual environment with the wheel and without even pip; its python."""
    python = tmp_path_factory.mktemp("environment") / "bin" / "python"
    folder = python.parent.parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    return python


def run(python, code):
    return subprocess.run(
        [python, "-I", "-c", code], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def test_it_imports_from_where_it_was_installed(environment):
    (file,) = run(environment, "import waybill; print(waybill.__file__)")
    assert Path(file).is_relative_to(environment.parent.parent)


def test_its_metadata_and_its_command_have_the_version_of_the_library(environment, wheel):
    said = run(
        environment,
        "import importlib.metadata as m, waybill; print(m.version('waybill')); print(waybill.version())",
    )
    command = [environment.parent / "waybill", "--version"]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    assert {*said, told, wheel.stem.split("-")[1]} == {said[1]}


def test_it_brings_its_libraries(environment):
    code = """
before = {line.split()[-1] for line in open("/proc/self/maps")}
import waybill
after = {line.split()[-1] for line in open("/proc/self/maps")}
print(*sorted(path for path in after - before if ".so" in path), sep="\\n")
"""
    loaded = [Path(library) for library in run(environment, code)]
    own = [library for library in loaded if library.is_relative_to(environment.parent.parent)]
    assert any(library.name == "libwaybill.so.0" for library in own)
    for library in set(loaded) - set(own):
        assert "lib-dynload" in library.parts or library.name.startswith(OF_THE_SYSTEM)


def test_no_file_in_it_needs_a_newer_system_than_rhel_9(wheel, environment):
    name, _, tags = wheel.stem.split("-", 2)
    assert (name, tags) == ("waybill", "cp310-abi3-manylinux_2_34_x86_64")
    (packages,) = environment.parent.parent.glob("lib/*/site-packages")
    files = elf_files(packages)
    assert packages / "waybill/libwaybill.so.0" in files
    assert {file.name: too_new(file) for file in files if too_new(file)} == {}


def test_it_is_small_and_has_the_licenses_of_all_that_it_brings(wheel):
    assert wheel.stat().st_size <= MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    licenses = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert "LICENSE" in licenses
    assert licenses > {  # As third_party/README.md has them.
        f"third_party/{package}"
        for package in (
            "libabsl20220623",
            "libcli11-dev",
            "libgrpc29",
            "libhwy1",
            "libprotobuf32",
            "nlohmann-json3-dev",
        )
    }
    assert "waybill/py.typed" in names and "waybill/_waybill.pyi" in names


@pytest.mark.parametrize("how", [["-I", "-m", "waybill"], None])
def test_it_brings_the_command(environment, how):
    command = [environment, *how] if how else [environment.parent / "waybill"]
    run = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "waybill demo" in run.stdout
    run = subprocess.run([*command, "fly"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == 'waybill: there is no command "fly"; waybill --help lists them\n'


def test_the_command_moves_weights_by_the_libraries_of_the_wheel(environment):
    (program,) = environment.parent.parent.glob("lib/*/site-packages/waybill/bin/waybill")
    for line in subprocess.check_output(["ldd", program], text=True).splitlines():
        library = Path(line.split()[2 if "=>" in line else 0])
        of_the_system = library.name.startswith((*OF_THE_SYSTEM, "linux-vdso"))
        assert of_the_system or "waybill.libs" in library.parts, line
    demo = ["demo", "--layers=1", "--versions=1", "--trainers=1", "--workers=1", "--no-bound"]
    run = subprocess.run(
        [environment.parent / "waybill", *demo], check=True, capture_output=True, text=True
    )
    assert "all right" in run.stdout


def test_the_example_runs(environment):
    """With the numpy that tests have, and nothing else of theirs."""
    import numpy

    code = (
        f"import sys; sys.path.append({str(Path(numpy.__file__).parent.parent)!r});"
        "import runpy; runpy.run_path('examples/python/ping.py', run_name='__main__')"
    )
    assert run(environment, code)[-1] == "version 3: 4.5 4.5 4.5"


def test_importing_it_imports_nothing_slow(environment):
    code = f"import sys, waybill; print(*sorted(sys.modules.keys() & {SLOW_TO_IMPORT}))"
    assert run(environment, code) == [""]
