"""The loop learns: guessing is worth one in eight, and at the end most of it is right."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_the_reward_rises():
    said = subprocess.check_output([sys.executable, "examples/python/rl_loop.py"], text=True)
    rows = [line.split() for line in said.splitlines() if line.split()[0].isdigit()]
    rewards = [float(row[2]) for row in rows]
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.8
    # What is generated is of the step's weights or of those before.
    assert all(int(row[0]) - 1 <= int(row[1]) <= int(row[0]) for row in rows[1:])
