# SPDX-License-Identifier: Apache-2.0
"""The step "torch", as far as torch without a GPU goes: values, FSDP2, and a publish beside training."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
RUN = Path("testing/gpu/bundle/run.py").resolve()


def test_it_passes_and_says_what_needs_a_gpu(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, RUN, "--to", tmp_path, "--only", "torch", "--small"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    step = json.loads((tmp_path / "report.json").read_text())["steps"]["torch"]
    results = {row["check"]: row["result"] for row in step["rows"]}
    assert done.returncode == 0, step["rows"]
    assert results == {
        "torch's default allocator: values, in-place": "passed",
        "torch's default allocator: values, shadow-copy": "passed",
        "publish after sleeping streams": "skipped",
        "CUDA graphs beside a publish": "skipped",
        "CUDA graphs beside a join": "skipped",
        "FSDP2 of one rank": "passed",
        "publish while training steps run": "passed",
    }
    assert [fact["name"] for fact in step["facts"]] == ["training steps while a version goes"]
