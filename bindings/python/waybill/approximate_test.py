# SPDX-License-Identifier: Apache-2.0
"""Tests of versions into which only a part of the tensors is taken over."""

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill

ELEMENTS = 3 * 65_536


@pytest.fixture
def job():
    """A trainer of two tensors that tells changes, and a worker that shows its version 1."""
    with Job() as job:
        trainer = job.trainer(changes="always", fabric="tcp")
        worker = job.worker(mode="shadow-copy", fabric="tcp")
        job.weights = {name: numpy.ones(ELEMENTS, numpy.float32) for name in ("a.x", "b.x")}
        job.shown = {name: numpy.zeros(ELEMENTS, numpy.float32) for name in job.weights}
        for name in job.weights:
            trainer.add(name, job.weights[name])
            worker.add(name, job.shown[name])
        job.join()
        publish(job, 1)
        yield job


def publish(job, version, **options):
    trainer, _ = job.ranks
    trainer.publish(version, deadline=PATIENCE, **options).committed.wait(PATIENCE)


def worker_status(job):
    return next(it for it in job.controller.status()["ranks"] if it["name"] == "worker 0")


def test_at_most_takes_the_largest_changes_and_the_next_version_the_rest(job):
    _, worker = job.ranks
    rng = numpy.random.default_rng(1)
    for weights in job.weights.values():
        weights += rng.permutation(ELEMENTS) / numpy.float32(2**18)  # One element stays as it is.
    publish(job, 2, at_most=0.01)
    for name, weights in job.weights.items():
        for block in range(0, ELEMENTS, 65_536):
            newest, shown = (it[block : block + 65_536] for it in (weights, job.shown[name]))
            taken = shown != 1
            assert (shown[taken] == newest[taken]).all()
            assert newest[taken].min() > newest[~taken].max()
        taken = numpy.count_nonzero(job.shown[name] != 1)
        assert taken == ELEMENTS // 100
    assert not worker.state.exact
    assert worker_status(job)["approximate"]
    publish(job, 3)
    for name, weights in job.weights.items():
        assert (job.shown[name] == weights).all()
    assert worker.state.exact
    assert not worker_status(job)["approximate"]
    trainer = next(it for it in job.controller.status()["ranks"] if it["name"] == "trainer 0")
    assert trainer["counters"]["left_out_elements"] == 2 * (ELEMENTS - ELEMENTS // 100 - 1)


def test_tensors_are_taken_over_by_name_and_by_pattern(job):
    _, worker = job.ranks
    for weights in job.weights.values():
        weights += 1
    publish(job, 2, tensors=["b.*"])
    assert (job.shown["a.x"] == 1).all()
    assert (job.shown["b.x"] == 2).all()
    assert not worker.state.exact
    publish(job, 3, tensors=["a.x"])
    assert (job.shown["a.x"] == 2).all()
    assert not worker.state.exact  # Nobody has compared it with the trainer's tensors.


def test_a_worker_that_comes_late_learns_that_what_it_gets_is_approximate(job):
    publish(job, 2, at_most=0.5)
    late = job.worker(group="late", fabric="tcp")
    for name in job.weights:
        late.add(name, shape=(ELEMENTS,), dtype="F32")
    late.join()
    next(event for event in late.events(PATIENCE) if isinstance(event, waybill.CaughtUp))
    assert late.state.shown_version == 2
    assert not late.state.exact


def test_a_selection_that_nobody_can_take_over_is_refused(job):
    for fraction in (0, -1, 1.5, float("nan")):
        with pytest.raises(waybill.InvalidArgument, match="at_most is .*a fraction"):
            publish(job, 2, at_most=fraction)
    with pytest.raises(waybill.InvalidArgument, match='no trainer has a tensor "c.x"'):
        publish(job, 2, tensors=["a.x", "c.x"])
    publish(job, 3)
    assert job.ranks[1].state.exact


def test_a_trainer_that_keeps_no_version_before_cannot_take_over_a_part():
    with Job() as job:
        trainer, worker = job.trainer(images=True), job.worker(ask=())
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        with pytest.raises(
            waybill.FailedPrecondition, match="a trainer keeps that has the option `changes`"
        ):
            publish(job, 1, at_most=0.5)
        publish(job, 1)
