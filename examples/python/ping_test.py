"""The example prints each version as the worker sees it."""

import subprocess
import sys


def test_each_version_is_seen():
    said = subprocess.check_output([sys.executable, "examples/python/ping.py"], text=True)
    assert said.splitlines() == [
        "version 1: 1.5 1.5 1.5",
        "version 2: 3.0 3.0 3.0",
        "version 3: 4.5 4.5 4.5",
    ]
