"""The wheel, installed where there is nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

# What every Linux has, and a wheel may take from there.
OF_THE_SYSTEM = ("ld-linux", "libc.", "libgcc_s.", "libm.", "libstdc++.", "libz.")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the wheel and without even pip; its python."""
    (wheel,) = Path("bindings/python/wheel").glob("*.whl")
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
    file, version = run(environment, "import waybill as w; print(w.__file__); print(w.version())")
    assert Path(file).is_relative_to(environment.parent.parent)
    assert version == "0.1.0"


def test_its_metadata_has_the_version_of_the_library(environment):
    said = run(
        environment,
        "import importlib.metadata as m, waybill; print(m.version('waybill')); print(waybill.version())",
    )
    assert said[0] == said[1]


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
