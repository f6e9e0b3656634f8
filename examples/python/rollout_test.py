"""A replica joins, dies and returns while versions flow; what it missed comes from the other one."""

import subprocess
import sys


def test_replicas_come_and_go():
    said = subprocess.check_output(
        [sys.executable, "examples/python/rollout.py"], text=True, timeout=100
    ).splitlines()

    def of(who):
        return [line.removeprefix(f"{who}: ") for line in said if line.startswith(f"{who}: ")]

    assert of("trainer") == [
        "rollout-0 joined",
        "version 1 went to rollout-0",
        "rollout-1 joined",
        "version 2 went to rollout-0, rollout-1",
        "rollout-1 left",
        "version 3 went to rollout-0",
        "rollout-1 joined",
        "version 4 went to rollout-0, rollout-1",
    ]
    assert of("rollout-1") == [
        "shows version 1: 0.5",
        "has caught up with version 1",
        "shows version 2: 1",
        "killed",
        "shows version 3: 1.5",
        "has caught up with version 3",
        "shows version 4: 2",
        "killed",
    ]
