# SPDX-License-Identifier: Apache-2.0
"""Tests that workers which fetch versions get the newest ones when they ask, and no others."""

import threading

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill


@pytest.fixture
def job():
    """A trainer with images, a worker to which versions are pushed, and one that fetches them."""
    with Job() as job:
        trainer = job.trainer(images=True)
        pushed = job.worker(group="pushed", mode="shadow-copy")
        asked = job.worker(
            group="asked", mode="shadow-copy", updates="when asked", ask=("arrived",)
        )
        job.weights = numpy.zeros(4, numpy.uint8)
        job.shown = [numpy.zeros(4, numpy.uint8) for _ in (pushed, asked)]
        trainer.add("w", job.weights)
        for worker, shown in zip((pushed, asked), job.shown, strict=True):
            worker.add("w", shown)
        job.join()
        yield job


def publish(job, version):
    job.weights[:] = version
    publish = job.ranks[0].publish(version, deadline=PATIENCE)
    job.weights[:] = 99  # The optimizer runs on.
    publish.committed.wait(PATIENCE)
    assert publish.outcomes == {"pushed": None}


def test_a_worker_gets_the_newest_version_when_it_asks(job):
    _, _, worker = job.ranks
    for version in (1, 2, 3):
        publish(job, version)
    assert worker.state.shown_version == 0
    assert worker.fetch(PATIENCE) == 3
    assert bytes(job.shown[1]) == bytes([3] * 4)
    assert worker.fetch(PATIENCE) == 3  # There is no newer one.
    publish(job, 4)
    assert worker.fetch(PATIENCE) == 4
    groups = {group["name"]: group for group in job.controller.status()["groups"]}
    assert groups["asked"]["fetches"] and not groups["pushed"]["fetches"]


def test_a_fetch_waits_for_the_least_version_that_will_do(job):
    _, _, worker = job.ranks
    publish(job, 1)
    assert worker.fetch(PATIENCE) == 1
    with pytest.raises(waybill.DeadlineExceeded, match="a newer version has not arrived"):
        worker.fetch(0.05, at_least=2)
    fetched = []
    thread = threading.Thread(target=lambda: fetched.append(worker.fetch(PATIENCE, at_least=3)))
    thread.start()
    publish(job, 2)
    publish(job, 3)
    thread.join()
    assert fetched == [3]


def test_a_fetch_waits_for_the_first_version_until_its_deadline(job):
    _, _, worker = job.ranks
    with pytest.raises(waybill.DeadlineExceeded, match="no version can be had yet"):
        worker.fetch(0.05)
    fetched = []
    thread = threading.Thread(target=lambda: fetched.append(worker.fetch(PATIENCE)))
    thread.start()
    publish(job, 1)
    thread.join()
    assert fetched == [1]


def test_what_the_user_raises_ends_the_fetch_and_the_next_one_succeeds(job):
    _, _, worker = job.ranks
    publish(job, 1)

    def fail():
        raise RuntimeError("in the middle of a generation")

    with pytest.raises(RuntimeError, match="generation"):
        worker.fetch(PATIENCE, before_commit=fail)
    assert worker.state.shown_version == 0
    assert worker.fetch(PATIENCE) == 1


def test_only_a_worker_that_was_made_for_it_fetches(job):
    _, pushed, _ = job.ranks
    with pytest.raises(waybill.FailedPrecondition, match="as they are published"):
        pushed.fetch(PATIENCE)
    with pytest.raises(waybill.InvalidArgument, match='neither "pushed" nor "when asked"'):
        job.worker(updates="sometimes")


def test_a_trainer_that_keeps_nothing_cannot_publish_to_nobody():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(updates="when asked")
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        with pytest.raises(waybill.FailedPrecondition, match="let the trainers keep images"):
            trainer.publish(1, deadline=PATIENCE)
        held = trainer.publish(2, hold=True, deadline=PATIENCE)
        assert held.outcomes == {}
        assert worker.fetch(PATIENCE) == 2
