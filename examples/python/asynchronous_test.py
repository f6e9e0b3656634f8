"""Rollouts fetch whole versions, none of which is too old, up to the last, while the trainer publishes."""

import re
import subprocess
import sys
from itertools import pairwise


def test_rollouts_fetch_versions_up_to_the_last_and_skip_few():
    said = subprocess.check_output(
        [sys.executable, "examples/python/asynchronous.py"], text=True, timeout=100
    )
    lines = re.findall(r"(rollout-\d) generates with version (\d+): (\d+) to (\d+)\n", said)
    assert len(lines) == said.count("\n")
    assert all(version == first == last for _, version, first, last in lines)
    for rollout in ("rollout-0", "rollout-1"):
        versions = [int(version) for name, version, _, _ in lines if name == rollout]
        assert versions[-1] == 50
        # The trainer waits once it has published one more than a rollout may be behind.
        assert all(before <= after <= before + 6 for before, after in pairwise(versions))
