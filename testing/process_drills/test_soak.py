# SPDX-License-Identifier: Apache-2.0
"""A short soak; `soak` does ten thousand updates, and prints what the processes hold."""

import json
import os
import subprocess

import pytest

PROGRAM = os.path.abspath("testing/process_drills/soak")
DEADLINE = 240


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_nothing_grows_while_versions_flow_and_ranks_come_and_go(fabric):
    done = subprocess.run(
        [PROGRAM, "--updates", "600", "--row", "200", "--fabric", fabric, "--json"],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    _, before, after = json.loads(done.stdout)
    assert after["decisions_bytes"] <= 1.02 * before["decisions_bytes"]
    for name in ("controller", "trainer 0", "worker 0"):
        held, earlier = after[name], before[name]
        assert held["descriptors"] == earlier["descriptors"], name
        # gRPC's pool breathes; in 200 updates, 14 processes come and go.
        assert held["threads"] <= earlier["threads"] + 4, name
        assert held["shared_kib"] <= earlier["shared_kib"], name
        assert held["resident_kib"] <= 1.02 * earlier["resident_kib"], name
