# SPDX-License-Identifier: Apache-2.0
"""The one wheel works in every CPython from 3.10 on."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]

USE = """
import sys
import threading
from array import array

import waybill

sys.path.append("examples/python")
import pingpong

with waybill.Controller() as controller:
    worker = threading.Thread(target=pingpong.main, args=("worker", controller.address))
    worker.start()
    pingpong.main("trainer", controller.address)
    worker.join()

with waybill.Controller() as controller:  # The worker's memory is Waybill's, and is read by the buffer protocol.
    weights = array("f", [1.5, 2.5])
    with waybill.Trainer(controller.address) as trainer, waybill.Worker(controller.address) as worker:
        trainer.add("w", weights)
        worker.add("w", shape=(2,), dtype="F32")
        joining = threading.Thread(target=trainer.join)
        joining.start()
        worker.join()
        joining.join()
        trainer.publish(version=1).committed.wait()
        with worker.snapshot() as snapshot:
            print("snapshot:", *snapshot.memory("w").cast("f"))

try:
    waybill.Trainer("nowhere:1", rank=-1)
except TypeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel():
    (wheel,) = Path("bindings/python/wheel").glob("*.whl")
    return wheel


@pytest.mark.parametrize("version", VERSIONS)
def test_it_moves_weights(version, wheel, tmp_path):
    (found,) = Path("..").glob("local_pythons/pythons.json")
    pythons = json.loads(found.read_text())
    if version not in pythons:
        pytest.skip(f"there is no CPython {version} on this machine")
    # pip looks whether the wheel's tag is for that Python.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--only-binary=:all:"]
    options = [f"--python-version={version}", "--implementation=cp", "--target", tmp_path]
    subprocess.run([*pip, *options, wheel], check=True)
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n{USE}"
    run = subprocess.run(
        [pythons[version], "-I", "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    assert sorted(run.stdout.splitlines()) == [
        '__init__(): "rank" has to be an int between 0 and 4294967295, not -1',
        "snapshot: 1.5 2.5",
        "trainer: 0.5 1.5 2.5 3.5",
        "worker: 0.5 1.5 2.5 3.5",
    ]


def test_it_has_one_extension_module_for_all(wheel):
    names = [
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if Path(name).name.startswith("_waybill.")
    ]
    assert sorted(names) == ["waybill/_waybill.abi3.so", "waybill/_waybill.pyi"]


def test_it_asks_for_the_oldest_python_that_its_tag_names(wheel):
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    assert "\nRequires-Python: >=3.10\n" in zipfile.ZipFile(wheel).read(metadata).decode()
    assert "-cp310-abi3-" in wheel.name
