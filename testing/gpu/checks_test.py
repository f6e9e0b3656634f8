# SPDX-License-Identifier: Apache-2.0
"""How steps run programs: what is told of tests that fail, crash, hang and are skipped."""

import json
import os
import signal
import subprocess
import sys

import pytest

# As a program of GoogleTest's.
PROGRAM = """#!/usr/bin/env python3
import os, signal, subprocess, sys
if "--gtest_list_tests" in sys.argv:
    print("Suite.\\n  Passes\\n  Fails\\n  Crashes\\n  Hangs\\n  Skips\\nAll/Cases.")
    print("  Hold/0  # GetParam() = 1\\n  Hold/1  # GetParam() = 2")
    sys.exit()
name = sys.argv[1].removeprefix("--gtest_filter=")
def run(name, how):
    print(f"[ RUN      ] {name}", flush=True)
    how(name)
passes = lambda name: print(f"[       OK ] {name} (1 ms)", flush=True)
if name == "Suite.Passes":
    run(name, passes)
elif name == "All/Cases.Hold/*":
    run("All/Cases.Hold/0", passes)
    run("All/Cases.Hold/1", passes)
elif name == "Suite.Fails":
    run(name, lambda name: print("file.cc:7: Failure\\nfive is not six"))
    sys.exit(1)
elif name == "Suite.Crashes":
    run(name, lambda name: os.kill(os.getpid(), signal.SIGSEGV))
elif name == "Suite.Skips":
    run(name, lambda name: print("file.cc:9: Skipped\\nno GPU\\n\\n[  SKIPPED ] Suite.Skips (0 ms)"))
elif name == "Suite.Hangs":
    # What it has started keeps its pipe.
    run(name, lambda name: subprocess.run(["sleep", "60"]))
"""
CODE = "import pathlib, sys, checks; checks.run_tests(pathlib.Path(sys.argv[1]), 1)"


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    program = tmp_path_factory.mktemp("program") / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", CODE, program],
        env={"PYTHONPATH": "testing/gpu/steps", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        output, _ = process.communicate(timeout=50)
        os.killpg(process.pid, signal.SIGKILL)  # As run.py does.
    return {name: (result, text) for result, name, text in map(json.loads, output.splitlines())}


def test_each_test_has_a_row_and_those_that_differ_by_a_parameter_share_one(rows):
    assert list(rows) == [
        "Suite.Passes",
        "Suite.Fails",
        "Suite.Crashes",
        "Suite.Hangs",
        "Suite.Skips",
        "All/Cases.Hold",
    ]
    assert rows["Suite.Passes"][1].startswith("1 test, ")
    assert rows["All/Cases.Hold"][0] == "passed"
    assert rows["All/Cases.Hold"][1].startswith("2 tests, ")


@pytest.mark.parametrize(
    ("name", "result", "says"),
    [
        ("Suite.Fails", "failed", ["it has ended with 1", "five is not six"]),
        ("Suite.Crashes", "failed", ["it was ended by SIGSEGV", "Suite.Crashes"]),
        ("Suite.Hangs", "failed", ["it did not end within 1 s", "[ RUN      ] Suite.Hangs"]),
        ("Suite.Skips", "skipped", ["no GPU"]),
    ],
)
def test_a_row_says_how_its_test_ended(rows, name, result, says):
    assert rows[name][0] == result
    for text in says:
        assert text in rows[name][1]
