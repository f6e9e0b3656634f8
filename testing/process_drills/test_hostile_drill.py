# SPDX-License-Identifier: Apache-2.0
"""Each kind of stranger for a moment; `hostile_drill` takes as long as asked, and prints what it costs."""

import json
import os
import subprocess

PROGRAM = os.path.abspath("testing/process_drills/hostile_drill")
DEADLINE = 240


def test_every_update_commits_while_strangers_harass_every_port():
    done = subprocess.run(
        [PROGRAM, "--blocks", "2", "--json"],
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert [row["kind"] for row in rows] == [
        "silent", "garbage", "half-greeting", "keyless", "unread",
    ]  # fmt: skip
    # The controller, its metrics, and the ranks that others connect to.
    assert all(row["ports"] >= 4 for row in rows if row["kind"] != "unread"), rows
    assert all(row["attacks"] > 0 for row in rows), rows
    assert all(0 < row["processor_seconds_per_attack"] < 1 for row in rows), rows
