# SPDX-License-Identifier: Apache-2.0
"""`waybill verify` asks the workers of a job of other programs what they show."""

import json
import os
import subprocess

import numpy
from one_process_job import PATIENCE, Job

SHAPE = (64, 32)


def verify(job, *arguments):
    """Its exit status, and what it prints."""
    done = subprocess.run(
        [os.path.abspath("tools/waybill/waybill"), "verify", "--controller", job.controller.address]
        + list(arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_it_names_the_tensor_and_the_worker_whose_memory_was_overwritten():
    weights = {name: numpy.ones(SHAPE, numpy.float32) for name in ("up", "down")}
    memory = {}
    with Job() as job:
        trainer = job.trainer()
        for name, weight in weights.items():
            trainer.add(name, weight)
        for group in ("a", "b"):
            worker = job.worker(group=group, mode="in-place", ask=())
            for name in weights:
                memory[group, name] = numpy.zeros(SHAPE, numpy.float32)
                worker.add(name, memory[group, name])
        job.join()
        trainer.publish(1, deadline=PATIENCE).committed.wait(PATIENCE)
        code, out, err = verify(job)
        assert (code, err) == (0, "")
        assert [line.split()[-1] for line in out.splitlines()] == ["result", "right", "right"]

        memory["b", "down"].view(numpy.uint8)[3, 4] ^= 1
        code, out, err = verify(job, "--json")
        assert code == 1
        assert "1 of 2 workers show something else than what was sent" in err
        right, wrong = json.loads(out)["workers"]
        assert (right["group"], right["version"], right["result"]) == ("a", 1, "right")
        assert right["bytes"] == wrong["bytes"] == 2 * 64 * 32 * 4
        assert (wrong["group"], wrong["version"], wrong["result"]) == ("b", 1, "differs")
        assert 'tensor "down"' in wrong["error"]
        assert 'tensor "up"' not in wrong["error"]
        assert verify(job, "--group", "a")[0] == 0
        code, out, err = verify(job, "--group", "b")
        assert code == 1
        assert (
            'differs: verify version 1: 1 of 2 pieces are not what was sent: tensor "down"' in out
        )
