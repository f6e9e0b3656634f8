# SPDX-License-Identifier: Apache-2.0
"""What is wrong is refused, by name; where the C ABI refuses, its message comes through unchanged."""

import numpy
import pytest
from one_process_job import PATIENCE, Job, together

import waybill

SHAPE = (8, 4)


def read_only():
    array = numpy.zeros(SHAPE, numpy.float32)
    array.flags.writeable = False
    return array


def overlapping(worker):
    memory = numpy.zeros(48, numpy.float32)
    worker.add("first", memory[:8])
    worker.add("a", memory[8:32])
    worker.add("b", memory[16:])


# name, what is added to a worker in place, what its join() says
DESTINATIONS = [
    (
        "read_only",
        lambda worker: worker.add("w", read_only()),
        'regions[0], "w" for "w": it is read-only, and to be written',
    ),
    (
        "bytes_are_read_only",
        lambda worker: worker.add("w", bytes(32)),
        'regions[0], "w" for "w": it is read-only, and to be written',
    ),
    (
        "every_second_column",
        lambda worker: worker.add("w", numpy.zeros((8, 8), numpy.float32)[:, ::2]),
        '"w": stride 2 of dimension 1, of shape (8, 4) with strides (8, 2)',
    ),
    ("overlapping", overlapping, '"a" and "b" overlap in memory'),
    (
        "beyond_its_tensor",
        lambda worker: worker.add(
            "w", numpy.zeros(SHAPE, numpy.float32), box=[(4, 12), (0, 4)], of_shape=SHAPE
        ),
        "[4, 12)",
    ),
]


@pytest.mark.parametrize(
    ("add", "said"), [c[1:] for c in DESTINATIONS], ids=[c[0] for c in DESTINATIONS]
)
def test_a_destination_that_cannot_be_written(add, said):
    with waybill.Worker("127.0.0.1:1", mode="in-place") as worker:
        with pytest.raises(waybill.InvalidArgument) as refused:
            add(worker)
            worker.join()
    assert said in str(refused.value)
    assert refused.value.scope is waybill.Scope.CALL


# name, what is added, the error
ADDITIONS = [
    ("complex", lambda rank: rank.add("w", numpy.zeros(4, complex)), "dtype 'complex128'"),
    ("foreign", lambda rank: rank.add("w", numpy.zeros(4, ">f4")), "byte order"),
    (
        "a_box_of_another_shape",
        lambda rank: rank.add("w", numpy.zeros(SHAPE), parts=[waybill.Part("q", (9, 4))]),
        "goes beyond the buffer's shape (8, 4)",
    ),
    (
        "a_part_of_other_dimensions",
        lambda rank: rank.add("w", numpy.zeros(SHAPE), parts=[waybill.Part("q", (8,))]),
        "a part of 1 dimensions",
    ),
    (
        "a_part_of_fewer_dimensions_beyond_the_last_ones",
        lambda rank: rank.add("w", numpy.zeros(SHAPE), parts=[waybill.Part("q", (8,), at=(0, 0))]),
        "goes beyond the buffer's shape (8, 4)",
    ),
    (
        "a_part_whose_strides_leave_the_buffer",
        lambda rank: rank.add(
            "w", numpy.zeros(SHAPE), parts=[waybill.Part("q", (8,), at=(0, 1), strides=(5,))]
        ),
        "goes beyond the buffer's shape (8, 4)",
    ),
    (
        "a_box_without_a_shape",
        lambda rank: rank.add("w", numpy.zeros(SHAPE), box=[(0, 8), (0, 4)]),
        "a box without",
    ),
]


@pytest.mark.parametrize("role", [waybill.Trainer, waybill.Worker])
@pytest.mark.parametrize(("add", "said"), [c[1:] for c in ADDITIONS], ids=[c[0] for c in ADDITIONS])
def test_what_is_no_shard(role, add, said):
    mode = {"mode": "in-place"} if role is waybill.Worker else {}
    with role("127.0.0.1:1", **mode) as rank, pytest.raises(waybill.InvalidArgument) as refused:
        add(rank)
    assert said in str(refused.value)


def test_what_is_no_tensor():
    with waybill.Trainer() as trainer, pytest.raises(TypeError, match="list is no tensor"):
        trainer.add("w", [1, 2])


def test_a_name_twice():
    with waybill.Trainer() as trainer:
        trainer.add("w", bytearray(4))
        with pytest.raises(waybill.InvalidArgument, match='"w" was added before'):
            trainer.add("w", bytearray(4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 2, "world": 2}, "rank.rank is 2, rank.world 2"),
        ({"ack_timeout": 99}, "rank.ack_timeout is 99"),
    ],
)
def test_an_identity_that_cannot_be(options, said):
    with waybill.Trainer(**options) as trainer:
        trainer.add("w", bytearray(4))
        with pytest.raises(waybill.InvalidArgument, match=said):
            trainer.join()


def test_a_fabric_that_is_none_is_refused_at_once():
    with pytest.raises(
        waybill.InvalidArgument, match="'pigeon' is none of auto, local, verbs, tcp"
    ):
        waybill.Trainer(fabric="pigeon")


def test_memory_that_does_not_fit_the_mode_is_refused_at_once():
    with waybill.Worker(mode="shadow") as worker:
        with pytest.raises(waybill.InvalidArgument, match='"w": mode "shadow" .* not this tensor'):
            worker.add("w", bytearray(4))
    with waybill.Worker(mode="shadow-copy") as worker:
        with pytest.raises(
            waybill.InvalidArgument, match='"w": mode "shadow-copy" .* none is given'
        ):
            worker.add("w", shape=(4,), dtype="U8")


def test_a_worker_that_has_added_nothing():
    with waybill.Worker("127.0.0.1:1") as worker:
        with pytest.raises(waybill.InvalidArgument, match="the worker holds nothing: add"):
            worker.join()


def test_a_name_with_nul():
    with waybill.Worker() as worker:
        worker.add("a\0b", shape=(4,), dtype="U8")
        with pytest.raises(TypeError, match="a str without NUL"):
            worker.join()


def test_a_snapshot_names_what_is_not_there():
    with Job() as job:
        trainer, worker = pair(job)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            with pytest.raises(waybill.NotFound, match='"w1" was not added; "w" was'):
                snapshot["w1"]


def test_missing_ranks_are_told_with_the_launchers_number(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Job() as job:
        trainer = job.trainer()
        trainer.add("w", bytearray(4))
        with pytest.raises(
            waybill.DeadlineExceeded, match="trainer 1.*2 of its kind by WORLD_SIZE"
        ):
            trainer.join(deadline=0.5)


def test_identity_from_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with waybill.Trainer() as trainer:
        trainer.add("w", bytearray(4))
        with pytest.raises(waybill.InvalidArgument, match="rank.rank is 5, rank.world 4"):
            trainer.join()
    monkeypatch.setenv("RANK", "five")
    with pytest.raises(waybill.InvalidArgument, match="RANK is 'five'"):
        waybill.Trainer()


def pair(job, **options):
    trainer, worker = job.trainer(), job.worker(mode="shadow-copy", **options)
    weights, shown = numpy.ones(SHAPE, numpy.float32), numpy.zeros(SHAPE, numpy.float32)
    trainer.add("w", weights)
    worker.add("w", shown)
    return trainer, worker


def test_a_version_twice():
    with Job() as job:
        trainer, _ = pair(job)
        job.join()
        trainer.publish(3).committed.wait(PATIENCE)
        for version in (3, 2):
            with pytest.raises(waybill.FailedPrecondition, match="version 3 was published"):
                trainer.publish(version)
        trainer.publish(4).committed.wait(PATIENCE)


def test_after_leaving():
    with Job() as job:
        trainer, worker = pair(job)
        job.join()
        trainer.leave()
        worker.leave()
        for rank in (trainer, worker):
            with pytest.raises(waybill.FailedPrecondition, match="it has left"):
                rank.join()
        with pytest.raises(waybill.FailedPrecondition, match="it has left"):
            trainer.publish(1)


def test_before_joining():
    with waybill.Trainer() as trainer, waybill.Worker() as worker:
        with pytest.raises(waybill.FailedPrecondition, match="has not joined: call join\(\) first"):
            trainer.publish(1)
        with pytest.raises(waybill.FailedPrecondition, match="has not joined: call join\(\) first"):
            worker.snapshot()


def test_a_traceparent_that_is_none():
    with Job() as job:
        trainer, _ = pair(job)
        job.join()
        with pytest.raises(waybill.InvalidArgument, match="VERSION-TRACE-SPAN-FLAGS"):
            trainer.publish(1, traceparent="00-1-2-01")
        trainer.publish(1, traceparent=f"00-{'a' * 32}-{'b' * 16}-01").committed.wait(PATIENCE)


def test_a_deadline_in_the_past():
    with Job() as job:
        trainer, _ = pair(job)
        with pytest.raises(waybill.DeadlineExceeded) as refused:
            trainer.join(deadline=-1.0)
        assert isinstance(refused.value, TimeoutError)
        job.join()
        with pytest.raises(waybill.DeadlineExceeded):
            trainer.publish(1, deadline=0.0)
        trainer.publish(1).committed.wait(PATIENCE)


def test_two_workers_of_one_identity():
    with Job() as job:
        _, worker = pair(job)
        second = job.worker(mode="shadow-copy")
        second.add("w", numpy.zeros(SHAPE, numpy.float32))
        job.ranks.remove(second)
        job.join()
        with pytest.raises(waybill.AlreadyExists, match="worker 0"):
            second.join(deadline=PATIENCE)
        assert worker.state.joined


def test_a_wrong_token():
    with Job(token="the right secret of the job") as job:
        trainer, worker = pair(job)
        errors = together([lambda: trainer.join(deadline=PATIENCE)])
        assert [type(error) for error in errors] == [waybill.Unauthenticated]


def test_no_controller():
    with waybill.Trainer("127.0.0.1:1") as trainer:
        trainer.add("w", bytearray(4))
        with pytest.raises(ConnectionError) as refused:
            trainer.join(deadline=1.0)
        assert refused.value.code in (waybill.Code.UNAVAILABLE, waybill.Code.DEADLINE_EXCEEDED)


def test_what_no_trainer_holds():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", numpy.zeros(SHAPE, numpy.float32))
        worker.add("v", shape=SHAPE, dtype="F32")
        errors = together([trainer.join, worker.join])
        assert [type(error) for error in errors] == [waybill.InvalidArgument] * 2
        assert '"v"' in str(errors[0])


def test_a_fork_is_told_so():
    import os

    context = waybill.runtime.context()
    assert waybill.describe()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            context.describe()
        except waybill.FailedPrecondition as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "fork" in os.read(reader, 1000).decode()


def test_a_forked_child_leaves_its_parents_rank_alone():
    import os

    with Job() as job:
        _, worker = pair(job)
        job.join()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                worker.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert worker.state.joined
