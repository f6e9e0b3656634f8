# SPDX-License-Identifier: Apache-2.0
"""Each fault once on each fabric; `tools/drills` draws them for as long as asked."""

import json
import os
import subprocess

import pytest

PROGRAM = os.path.abspath("testing/process_drills/random_drill")
DEADLINE = 240


def run(*arguments):
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False
    )


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_a_job_recovers_from_each_fault(fabric):
    done = run("--each", "--seed", "3", "--fabric", fabric, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)["fabrics"][fabric]
    assert report["rounds"] == 9
    # On a busy machine the version may be there before the worker is stopped. A lender that sent a
    # wrong bit is asked again, or replaced.
    ends = (
        "a flipped bit failed an update",
        "a flip came too late",
        "a flipped bit was of a loan",
    )
    assert sum(report["counts"].get(end, 0) for end in ends) == 1


def test_a_job_whose_trainers_have_replicas_recovers_from_kills():
    done = run("--copies", "2", "--fault", "kill", "--rounds", "12", "--fabric", "tcp", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["fabrics"]["tcp"]["counts"]["recovered at attempt 1"] == 12


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_a_job_whose_workers_relay_recovers_from_each_fault(fabric):
    done = run("--relays", "--each", "--seed", "4", "--rounds", "9", "--fabric", fabric)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_digests_the_drill_finds_a_flipped_bit_and_says_how_to_repeat_it():
    done = run("--fault", "flip", "--rounds", "10", "--fabric", "tcp", "--no-digests")
    assert done.returncode == 1, done.stdout
    assert "undetected flip" in done.stderr
    assert "tools/drills --fabric tcp --seed 1 --from " in done.stderr
