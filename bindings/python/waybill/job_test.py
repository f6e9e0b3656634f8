# SPDX-License-Identifier: Apache-2.0
"""Weights that are published arrive, in each mode, and nothing copies them on the way."""

import time
import tracemalloc

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill

SHAPE = (64, 32)


def of_version(version):
    return (numpy.arange(64 * 32, dtype=numpy.float32) + version * 10000).reshape(SHAPE)


@pytest.mark.parametrize("mode", ["shadow", "shadow-copy", "in-place"])
def test_what_is_published_is_shown(mode):
    weights = numpy.zeros(SHAPE, numpy.float32)
    memory = None if mode == "shadow" else numpy.zeros(SHAPE, numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode=mode, ask=())
        trainer.add("weight", weights)
        if memory is None:
            worker.add("weight", shape=SHAPE, dtype="float32")
        else:
            worker.add("weight", memory)
        job.join()
        for version in (1, 2, 7):
            weights[:] = of_version(version)
            publish = trainer.publish(version, deadline=PATIENCE)
            publish.committed.wait(PATIENCE)
            assert publish.outcomes == {"all": None}
            assert worker.await_version(version, PATIENCE) == version
            assert worker.verify() == version
            with worker.snapshot() as snapshot:
                assert snapshot.version == version
                numpy.testing.assert_array_equal(snapshot["weight"], of_version(version))
                assert not snapshot["weight"].flags.writeable
            if memory is not None:
                numpy.testing.assert_array_equal(memory, of_version(version))
                memory[3, 4] += 1
                with pytest.raises(
                    waybill.DataLoss, match=f'version {version}: .* tensor "weight"'
                ):
                    worker.verify()


@pytest.mark.parametrize("mode", ["shadow", "shadow-copy"])
def test_a_layouts_manifest_is_held_as_it_says(mode):
    layout = waybill.Layout(model="gpt2", layers=1)
    held = [layout.trainer_manifest(), layout.worker_manifest()]
    weights = numpy.arange(held[0].region_sizes[0] // 4, dtype=numpy.uint32)
    memory = [numpy.zeros(held[1].region_sizes[0], numpy.uint8)] if mode != "shadow" else []
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode=mode)
        trainer.add_manifest(held[0], [weights])
        worker.add_manifest(held[1], memory)
        with pytest.raises(waybill.FailedPrecondition, match="has added something before"):
            worker.add_manifest(held[1])
        job.join()
        trainer.publish(1, deadline=PATIENCE).committed.wait(PATIENCE)
        worker.await_version(1, PATIENCE)
        sent, shown = (first_shard(manifest, "wte.weight") for manifest in held)
        row = 768 * 4
        with worker.snapshot() as snapshot:
            assert bytes(snapshot.region(0)[shown : shown + row]) == bytes(
                weights.view(numpy.uint8)[sent : sent + row]
            )


def first_shard(manifest, ending):
    """Where the shard of the tensor of that name begins in its region."""
    said = manifest.describe()
    names = [tensor["name"] for tensor in said["tensors"]]
    return next(
        shard["place"]["offset_bytes"]
        for shard in said["shards"]
        if names[shard["tensor"]].endswith(ending)
    )


def test_rows_over_trainers_and_columns_over_workers():
    whole = of_version(1)
    rows = [whole[:40].copy(), whole[40:].copy()]
    columns = [numpy.zeros((64, 16), numpy.float32) for _ in range(2)]
    with Job() as job:
        trainers = [job.trainer(rank=rank, world=2) for rank in range(2)]
        workers = [job.worker(rank=rank, world=2, mode="shadow-copy") for rank in range(2)]
        for trainer, begin, held in zip(trainers, (0, 40), rows, strict=True):
            trainer.add("w", held, box=[(begin, begin + len(held)), (0, 32)], shape=SHAPE)
        for worker, begin, held in zip(workers, (0, 16), columns, strict=True):
            worker.add("w", held, box=[(0, 64), (begin, begin + 16)], of_shape=SHAPE)
        job.join()
        publishes = [trainer.publish_async(1) for trainer in trainers]
        for publish in publishes:
            publish.committed.wait(PATIENCE)
    numpy.testing.assert_array_equal(numpy.hstack(columns), whole)


def test_the_manifest_of_a_rank_says_which_rack_its_host_is_in():
    with Job() as job:
        trainer, worker = job.trainer(rack="leaf-1"), job.worker(rack="leaf-2")
        trainer.add("w", of_version(1))
        worker.add("w", shape=SHAPE, dtype="F32")
        job.join()
        assert trainer.describe()["rack"] == "leaf-1"
        assert worker.describe()["rack"] == "leaf-2"


def test_a_trainer_with_a_rate_limit_sends_no_faster():
    weights = numpy.arange(4 << 20, dtype=numpy.float32)
    rate, post, credit = 50e6, 4 << 20, 0.02
    with Job() as job:
        trainer, worker = job.trainer(fabric="tcp", rate_limit=int(rate)), job.worker(fabric="tcp")
        trainer.add("w", weights)
        worker.add("w", shape=weights.shape, dtype="F32")
        job.join()
        begin = time.monotonic()
        trainer.publish(1).committed.wait(PATIENCE)
        assert time.monotonic() - begin >= (weights.nbytes - post) / rate - credit
        with worker.snapshot() as snapshot:
            numpy.testing.assert_array_equal(snapshot["w"], weights)


def test_a_fused_buffer_is_filled_from_its_parts_and_padding_is_zero():
    q, k = of_version(1)[:8], of_version(2)[:4]
    fused = numpy.full((16, 32), -1, numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("q", q)
        trainer.add("k", k)
        parts = [
            waybill.Part("q", (8, 32), [(2, 8), (0, 32)]),
            waybill.Part("k", (4, 32)),
            waybill.Padding((4, 32)),
            waybill.Part("q", (8, 32), [(0, 2), (0, 32)]),
        ]
        worker.add("qk", fused, parts=parts)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    expected = numpy.vstack([q[2:], k, numpy.zeros((4, 32)), q[:2]])
    numpy.testing.assert_array_equal(fused, expected)


def test_a_part_of_fewer_dimensions_lies_at_its_index_of_a_stacked_buffer():
    experts = [of_version(version) for version in (1, 2, 3)]
    stacked = numpy.full((3, 64, 32), -1, numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        parts = []
        for e, expert in enumerate(experts):
            trainer.add(f"experts.{e}", expert)
            upper, lower = [(0, 40), (0, 32)], [(40, 64), (0, 32)]
            parts.append(waybill.Part(f"experts.{e}", SHAPE, upper, at=(e, 24, 0)))
            parts.append(waybill.Part(f"experts.{e}", SHAPE, lower, at=(e, 0, 0)))
        worker.add("w", stacked, parts=parts)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    numpy.testing.assert_array_equal(stacked, [numpy.roll(e, 24, axis=0) for e in experts])


def test_a_part_with_strides_of_its_own_is_transposed():
    q, k = of_version(1), numpy.arange(3, dtype=numpy.float32)
    shown = numpy.full((33, 65), -1, numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("q", q)
        trainer.add("k", k)
        parts = [
            waybill.Part("q", SHAPE, at=(0, 1), strides=(1, 65)),
            waybill.Part("k", (3,), at=(2, 0), strides=(130,)),
            waybill.Padding((2, 1), at=(0, 0)),
            waybill.Padding((1, 1), at=(3, 0)),
            waybill.Padding((1, 1), at=(5, 0)),
            waybill.Padding((26,), at=(7, 0), strides=(65,)),
            waybill.Padding((64,), at=(32, 1)),
        ]
        worker.add("w", shown, parts=parts)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    expected = numpy.zeros((33, 65), numpy.float32)
    expected[:32, 1:] = q.T
    expected[[2, 4, 6], 0] = k
    numpy.testing.assert_array_equal(shown, expected)


def test_ranks_live_through_a_restart_of_the_controller(tmp_path):
    """Nothing is rebuilt: the trainer and the worker that were there go on."""
    weights, memory = numpy.zeros(SHAPE, numpy.float32), numpy.zeros(SHAPE, numpy.float32)
    log = str(tmp_path / "decisions")
    with Job(state=log) as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", weights)
        worker.add("weight", memory)
        job.join()
        weights[:] = of_version(1)
        first = trainer.publish(1, deadline=PATIENCE)
        first.committed.wait(PATIENCE)
        address = job.controller.address
        job.controller.close()
        of_groups = (waybill.GroupJoined, waybill.GroupLeft)
        events = {
            rank: (
                e for e in rank.events(PATIENCE) if not e.version and not isinstance(e, of_groups)
            )
            for rank in (trainer, worker)
        }
        for rank in (trainer, worker):
            lost = next(events[rank])
            assert isinstance(lost, waybill.Disconnected)
            assert isinstance(lost.reason, waybill.Unavailable)
            assert repr(lost) == "<Disconnected>"
        weights[:] = of_version(2)
        second = trainer.publish_async(2, deadline=PATIENCE)  # It waits for the controller.
        with waybill.Controller(listen=address, state=log):
            for rank in (trainer, worker):
                back = next(events[rank])
                assert isinstance(back, waybill.Reconnected)
            second.committed.wait(PATIENCE)
            assert worker.state.shown_version == 2
            numpy.testing.assert_array_equal(memory, of_version(2))
            assert first.outcomes == second.outcomes == {"all": None}
            with pytest.raises(waybill.FailedPrecondition, match="version 2 was published"):
                trainer.publish(1)


def test_weights_are_not_copied():
    """Megabytes move; Python's allocator, which numpy's is counted by, sees kilobytes."""
    weights = numpy.ones((1024, 4096), numpy.float32)
    shown = numpy.zeros_like(weights)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="in-place", ask=())
        tracemalloc.start()
        trainer.add("weight", weights)
        worker.add("weight", shown)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            assert snapshot["weight"].ctypes.data == shown.ctypes.data
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20
    assert shown.min() == 1


def test_arrays_of_one_allocation_are_one_region():
    whole = numpy.arange(96, dtype=numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        target = numpy.zeros(96, numpy.float32)
        for i in range(3):
            trainer.add(f"part {i}", whole[32 * i : 32 * (i + 1)])
            worker.add(f"part {i}", target[32 * i : 32 * (i + 1)])
        job.join()
        assert len(trainer._regions) == len(worker._regions) == 1
        trainer.publish(1).committed.wait(PATIENCE)
    numpy.testing.assert_array_equal(target, whole)


def test_receive_returns_no_version_twice():
    with Job() as job:
        weights = numpy.zeros(8, numpy.float32)
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", weights)
        worker.add("w", shape=(8,), dtype="F32")
        job.join()
        trainer.publish(1, deadline=PATIENCE).committed.wait(PATIENCE)
        assert worker._pump.until(lambda: bool(worker._unread), PATIENCE)
        late = list(worker._unread)  # Its Commit comes after receive() has seen what is shown.
        worker._unread.clear()
        assert worker.receive(1, deadline=PATIENCE) == 1
        worker._unread.extend(late)
        with pytest.raises(waybill.DeadlineExceeded):
            worker.receive(deadline=0.1)
        trainer.publish(2, deadline=PATIENCE)
        assert worker.receive(deadline=PATIENCE) == 2
