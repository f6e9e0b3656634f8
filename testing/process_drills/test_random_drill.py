"""Each fault once on each fabric; `tools/drills` draws them for as long as asked."""

import json
import os
import subprocess

import pytest

PROGRAM = os.path.abspath("testing/process_drills/random_drill")
DEADLINE = 240


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_a_job_recovers_from_each_fault(fabric):
    done = subprocess.run(
        [PROGRAM, "--each", "--seed", "3", "--fabric", fabric, "--json"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)["fabrics"][fabric]
    assert report["rounds"] == 8
    assert report["counts"]["a flipped bit failed an update"] == 1


def test_a_failed_drill_says_how_to_repeat_it():
    done = subprocess.run(
        [PROGRAM, "--rounds", "1", "--fabric", "none"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 2
    assert "local" in done.stderr
