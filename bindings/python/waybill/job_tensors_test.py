# SPDX-License-Identifier: Apache-2.0
"""What a job's trainers hold can be asked for before a worker is made."""

import threading

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill


def test_the_tensors_of_all_trainers_are_told_once_and_whole():
    with Job() as job:
        for rank in range(2):
            trainer = job.trainer(rank=rank, world=2)
            rows = numpy.zeros((2, 8), numpy.float32)
            trainer.add("split", rows, box=((2 * rank, 2 * rank + 2), (0, 8)), shape=(4, 8))
            trainer.add("whole", numpy.zeros(3, numpy.uint8))
        trainers = [threading.Thread(target=trainer.join) for trainer in job.ranks]
        for thread in trainers:
            thread.start()
        told = waybill.job_tensors(job.controller.address, deadline=PATIENCE)
        assert told == [("split", "F32", (4, 8)), ("whole", "U8", (3,))]
        # Trainers are whole when there is a group.
        worker = job.worker()
        for tensor in told:
            worker.add(tensor.name, shape=tensor.shape, dtype=tensor.dtype)
        worker.join()
        for thread in trainers:
            thread.join(PATIENCE)


def test_trainers_that_are_missing_are_named():
    with Job() as job:
        with pytest.raises(waybill.DeadlineExceeded, match="the job waits for every trainer"):
            waybill.job_tensors(job.controller.address, deadline=2)
