"""Four ranks of torchrun train, another process serves: both say the same of each version."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_the_worker_sees_what_the_trainers_have(tmp_path):
    worker = subprocess.Popen(
        [sys.executable, "examples/python/worker.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    address = worker.stdout.readline().strip()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
    trainers = subprocess.run(
        [*torchrun, "examples/python/fsdp2_trainer.py", address],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
    )
    seen = worker.communicate(timeout=60)[0].splitlines()
    published = [line for line in trainers.stdout.splitlines() if line.startswith("version")]
    assert worker.returncode == 0
    assert len(published) == 3

    def total(line):
        return float(line.split()[-1])

    for ours, theirs in zip(published, seen, strict=True):
        assert ours.split()[:2] == theirs.split()[:2]
        assert total(ours) == pytest.approx(total(theirs), abs=2e-3)
