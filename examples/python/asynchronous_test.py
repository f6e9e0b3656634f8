"""Rollouts fetch whole versions, each newer than the one before, up to the last, while the trainer publishes."""

import re
import subprocess
import sys


def test_rollouts_fetch_newer_and_newer_versions_up_to_the_last():
    said = subprocess.check_output(
        [sys.executable, "examples/python/asynchronous.py"], text=True, timeout=100
    )
    lines = re.findall(r"generates with version (\d+): (\d+) to (\d+)\n", said)
    assert len(lines) == said.count("\n")
    assert all(version == first == last for version, first, last in lines)
    assert sum(version == "50" for version, _, _ in lines) == 2
