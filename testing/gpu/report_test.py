"""The report, on a fake driver and without one."""

import os
import subprocess
import sys

REPORT = [
    sys.executable,
    "testing/gpu/report.py",
    "--megabytes",
    "8",
    "--updates",
    "3",
    "--no-kernels",
]


def report(*more, driver=None):
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": driver or ""}
    return subprocess.run([*REPORT, *more], env=environment, capture_output=True, text=True)


def test_without_a_gpu_it_says_so_and_ends_with_an_error():
    done = report()
    assert done.returncode != 0
    assert "UNAVAILABLE: " in done.stderr
    assert done.stdout == ""


def test_it_names_the_gpu_and_prints_what_is_written_to_the_file(tmp_path):
    done = report("--to", str(tmp_path / "page.md"), driver=os.path.abspath("testing/fake_cuda"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Fake GPU, driver ")
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        "copy within the GPU",
        "copy to pinned host memory",
        "copy from pinned host memory",
        "update between two processes, local",
        "the same, staged over tcp",
    ]
    assert (tmp_path / "page.md").read_text() == done.stdout
