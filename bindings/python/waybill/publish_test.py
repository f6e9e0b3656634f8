# SPDX-License-Identifier: Apache-2.0
"""Tests that publishes wait their turn, lose nobody's events, and can be interrupted."""

import asyncio
import os
import signal
import threading

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill


@pytest.fixture
def job():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=())
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        yield job


def test_outcomes_that_come_during_the_next_publish_are_not_lost(job):
    trainer, _ = job.ranks
    publishes = [trainer.publish(version, deadline=PATIENCE) for version in range(1, 100)]
    for publish in publishes:
        publish.committed.wait(PATIENCE)
        assert publish.sent.done and publish.outcomes == {"all": None}


def until(rank, kind):
    """Returns the rank's next event of a kind."""
    return next(event for event in rank.events(PATIENCE) if isinstance(event, kind))


def test_a_version_that_no_group_shows_is_raised_by_the_next_publish():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()

        def lose(version):
            lost = trainer.publish(version, deadline=PATIENCE)  # Sent, which is all that it tells.
            until(worker, waybill.Arrived).veto("not today")
            until(worker, waybill.Abort)
            assert trainer._pump.until(lambda: lost._committed.done, PATIENCE)
            return lost

        lose(1)
        with pytest.raises(waybill.WaybillError, match="version 2: version 1 was lost.*not today"):
            trainer.publish(2)
        with pytest.raises(waybill.WaybillError, match="not today"):
            lose(2).committed.wait(PATIENCE)
        lose(3)  # Version 2 was raised already.


def test_a_version_with_the_bytes_of_the_one_before_is_said_to_be_unchanged():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("commit",))
        weights = bytearray(b"abcd")
        trainer.add("w", weights)
        worker.add("w", shape=(4,), dtype="U8")
        job.join()

        def publish(version, **options):
            sent = trainer.publish(version, **options)
            commit = until(worker, waybill.Commit)
            commit.shown()
            sent.committed.wait(PATIENCE)
            assert sent.unchanged == ({"all"} if commit.unchanged else set())
            return commit.unchanged

        assert not publish(1)
        assert publish(2)
        weights[:] = b"efgh"
        assert not publish(3)
        assert not publish(4, digests=False)  # It is not known.
        assert not publish(5)
        assert publish(6)
        assert worker.state.unchanged_versions == 2
        counters = [rank["counters"] for rank in job.controller.status()["ranks"]]
        assert [c["unchanged_versions"] for c in counters if "unchanged_versions" in c] == [2]


def test_the_log_says_once_that_versions_do_not_change(caplog):
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=())
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        for version in range(1, 5):
            trainer.publish(version).committed.wait(PATIENCE)
        said = [r.getMessage() for r in caplog.records if "showed before" in r.getMessage()]
        assert len(said) == 1 and "version 2" in said[0] and 'group "all"' in said[0]


def test_a_publish_that_a_reader_keeps_from_its_buffer_names_the_reader(job):
    trainer, worker = job.ranks
    trainer.publish(1).committed.wait(PATIENCE)
    with worker.snapshot("evaluation"):
        trainer.publish(2).committed.wait(PATIENCE)
        with pytest.raises(waybill.WaybillError, match="snapshot of version 1 by evaluation"):
            trainer.publish(3, deadline=2.0)


def test_a_version_that_is_held_waits_for_its_word(job):
    trainer, worker = job.ranks
    trainer.publish(1).committed.wait(PATIENCE)
    publish = trainer.publish(2, hold_commit=True, deadline=PATIENCE)
    publish.arrived.wait(PATIENCE)
    assert worker.state.shown_version == 1
    publish.commit()
    publish.committed.wait(PATIENCE)
    assert worker.state.shown_version == 2
    with pytest.raises(waybill.FailedPrecondition, match="no group waits for it"):
        publish.commit()


def test_with_images_tensors_may_change_while_a_version_waits_for_its_word():
    with Job() as job:
        trainer, worker = job.trainer(images=True), job.worker(mode="shadow-copy")
        weights, shown = numpy.zeros(4, numpy.uint8), numpy.zeros(4, numpy.uint8)
        trainer.add("w", weights)
        worker.add("w", shown)
        job.join()
        for version in (1, 2, 3):
            weights[:] = version
            publish = trainer.publish(version, hold_commit=True, deadline=PATIENCE)
            weights[:] = 100 + version  # It is copied.
            publish.arrived.wait(PATIENCE)
            publish.commit()
            publish.committed.wait(PATIENCE)
            assert bytes(shown) == bytes([version] * 4)


def test_with_images_a_version_that_fails_on_its_way_is_raised_by_the_next_publish():
    with Job() as job:
        trainer, worker = job.trainer(images=True), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        lost = trainer.publish(1, deadline=PATIENCE)
        until(worker, waybill.Arrived).veto("not today")
        until(worker, waybill.Abort)
        assert trainer._pump.until(lambda: lost._committed.done, PATIENCE)
        with pytest.raises(waybill.WaybillError, match="version 2: version 1 was lost.*not today"):
            trainer.publish(2)


def test_with_changes_a_worker_completes_what_did_not_travel():
    with Job() as job:
        weights, shown = (
            numpy.arange(1 << 18, dtype=numpy.float32),
            numpy.zeros(1 << 18, numpy.float32),
        )
        trainer = job.trainer(changes="always", fabric="tcp")
        worker = job.worker(mode="shadow-copy", fabric="tcp")
        trainer.add("w", weights)
        worker.add("w", shown)
        job.join()
        for version in (1, 2, 3, 4):
            weights[version::1000] += 1
            trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)
            assert (shown == weights).all()
        # The controller has heard what the first three have spared: that comes with SENT, before the trainer publishes again.
        # The report of the fourth may still be on its way.
        ranks = job.controller.status()["ranks"]
        spared = sum(rank["counters"].get("spared_bytes", 0) for rank in ranks)
        assert 0.99 * 2 * weights.nbytes < spared < 3 * weights.nbytes


def test_changes_are_never_auto_or_always():
    with pytest.raises(
        waybill.InvalidArgument, match="changes True is none of never, auto, always"
    ):
        waybill.Trainer("127.0.0.1:1", changes=True)


def test_a_version_that_is_aborted_is_not_shown_and_the_next_one_is(job):
    trainer, worker = job.ranks
    trainer.publish(1).committed.wait(PATIENCE)
    publish = trainer.publish(2, hold_commit=True, deadline=PATIENCE)
    publish.arrived.wait(PATIENCE)
    publish.abort("the engine will not pause")
    with pytest.raises(waybill.WaybillError, match="trainer 0: the engine will not pause"):
        publish.committed.wait(PATIENCE)
    assert worker.state.shown_version == 1 and publish.given_up == {"all"}
    publish = trainer.publish(3, deadline=PATIENCE)
    with pytest.raises(waybill.FailedPrecondition, match="no group waits for it"):
        publish.commit()
    publish.committed.wait(PATIENCE)
    assert publish.arrived.done


def test_a_held_version_may_be_aborted_before_it_has_arrived():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(b"abcd"))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        # It returns when the version is sent, and the worker has not voted for it.
        publish = trainer.publish(1, hold_commit=True, deadline=PATIENCE)
        assert not publish.arrived.done
        publish.abort("the engine will not pause")
        with pytest.raises(waybill.WaybillError, match="trainer 0: the engine will not pause"):
            publish.committed.wait(PATIENCE)
        publish = trainer.publish(2, hold_commit=True, deadline=PATIENCE)
        assert next(e.version for e in worker.events(PATIENCE) if accept(e)) == 2
        publish.arrived.wait(PATIENCE)
        publish.commit()
        publish.committed.wait(PATIENCE)


def accept(event):
    """Returns whether it was the arrival of version 2, which is accepted."""
    if not isinstance(event, waybill.Arrived) or event.version != 2:
        return False
    event.accept()
    return True


def test_a_held_version_that_nobody_commits_ends_at_its_deadline(job):
    trainer, worker = job.ranks
    trainer.publish(1).committed.wait(PATIENCE)
    publish = trainer.publish(2, hold_commit=True, deadline=2.0)
    with pytest.raises(
        waybill.DeadlineExceeded, match="waiting for commit.. or abort.. by a trainer"
    ):
        publish.committed.wait(PATIENCE)
    assert worker.state.shown_version == 1


def test_a_worker_that_is_paused_refuses_before_its_program_is_asked():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="in-place")
        trainer.add("w", bytearray(b"abcd"))
        worker.add("w", bytearray(4))
        job.join()
        worker.pause()
        with pytest.raises(waybill.FailedPrecondition, match="the worker is paused"):
            trainer.publish(1, deadline=PATIENCE)
        worker.resume(contents_kept=True)
        publish = trainer.publish_async(2, deadline=PATIENCE)
        assert worker.receive(2, PATIENCE) == 2
        publish.committed.wait(PATIENCE)


@pytest.mark.parametrize("mode", ["in-place", "shadow-copy"])
def test_padding_is_zeroed_again_after_the_engines_memory_was_lost(mode):
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode=mode, ask=())
        trainer.add("w", bytearray(b"abcd"))
        shown = bytearray(8)
        parts = [waybill.Part("w", (4,)), waybill.Padding((4,))]
        worker.add("w", shown, parts=parts)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        worker.pause()
        shown[:] = b"\xff" * 8  # What the memory has when it is mapped again.
        worker.resume(contents_kept=False)
        trainer.publish(2).committed.wait(PATIENCE)
        assert shown == b"abcd\0\0\0\0"


@pytest.mark.parametrize("mode", ["in-place", "shadow-copy"])
def test_whoever_reads_within_reading_never_sees_two_versions(mode):
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode=mode, ask=())
        sent, shown = numpy.zeros(1 << 20, numpy.uint32), numpy.zeros(1 << 20, numpy.uint32)
        trainer.add("w", sent)
        worker.add("w", shown)
        job.join()
        with pytest.raises(waybill.FailedPrecondition, match="no version is shown yet"):
            with worker.reading():
                pass
        torn, over = [], threading.Event()
        sent[:] = 1
        trainer.publish(1).committed.wait(PATIENCE)

        def read():
            while not over.is_set():
                try:
                    with worker.reading(timeout=PATIENCE) as version:
                        if not (shown == version).all():
                            torn.append(version)
                except waybill.WaybillError as error:
                    torn.append(str(error))

        reader = threading.Thread(target=read)
        reader.start()
        for version in range(2, 30):
            sent[:] = version
            trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)
        over.set()
        reader.join(PATIENCE)
        assert torn == []


def test_a_trainer_is_told_of_a_worker_that_its_group_has_lost():
    with Job() as job:
        trainer, first, second = job.trainer(), job.worker(world=2), job.worker(rank=1, world=2)
        trainer.add("w", bytearray(4))
        for worker in (first, second):
            worker.add("w", shape=(4,), dtype="U8")
        job.join()
        second.close()
        lost = until(trainer, waybill.WorkerLost)
        assert lost.group == "all" and "worker 1" in str(lost.reason)


def test_groups_come_and_go_while_versions_flow():
    with Job() as job:
        trainer, _ = job.trainer(), job.worker(group="a")
        for rank in job.ranks:
            rank.add("w", bytearray(4)) if rank is trainer else rank.add(
                "w", shape=(4,), dtype="U8"
            )
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with job.worker(group="b") as late:
            late.add("w", shape=(4,), dtype="U8")
            late.join()
            caught_up = until(late, waybill.CaughtUp)
            assert caught_up.version == late.state.shown_version == 1
            both = trainer.publish(2)
            both.committed.wait(PATIENCE)
            assert both.outcomes == {"a": None, "b": None}
            assert not late.state.catching_up
        assert [until(trainer, waybill.GroupJoined).group for _ in range(2)] == ["a", "b"]
        assert until(trainer, waybill.GroupLeft).group == "b"
        alone = trainer.publish(3)
        alone.committed.wait(PATIENCE)
        assert alone.outcomes == {"a": None}


def test_a_group_that_comes_back_alone_gets_what_the_trainers_hold():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        memory = bytearray(b"abcd")
        trainer.add("w", memory)
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        trainer.publish(1, hold=True).committed.wait(PATIENCE)
        worker.close()
        with job.worker() as back:
            back.add("w", shape=(4,), dtype="U8")
            back.join()
            assert until(back, waybill.CaughtUp).version == 1
            with back.snapshot() as shown:
                assert bytes(shown["w"]) == b"abcd"
            with pytest.raises(
                waybill.FailedPrecondition, match="version 1 is held; release it first"
            ):
                trainer.publish(2)
            trainer.release()
            trainer.release()  # Nothing is held.
            memory[:] = b"efgh"
            trainer.publish(2).committed.wait(PATIENCE)
            with back.snapshot() as shown:
                assert bytes(shown["w"]) == b"efgh"


def test_workers_without_a_rank_get_those_that_nobody_has():
    with Job() as job:
        trainer, *workers = job.trainer(), *(job.worker(rank=None, world=2) for _ in range(2))
        trainer.add("w", bytearray(4))
        for worker in workers:
            worker.add("w", shape=(4,), dtype="U8")
        job.join()
        assert sorted(worker.rank for worker in workers) == [0, 1]
        late = job.worker(rank=None, world=2)
        late.add("w", shape=(4,), dtype="U8")
        with pytest.raises(waybill.ResourceExhausted, match="all 2 workers of group all are here"):
            late.join()


def test_no_version_goes_without_a_required_group():
    with Job(require=["b"]) as job:
        trainer, _ = job.trainer(), job.worker(group="a")
        for rank in job.ranks:
            rank.add("w", bytearray(4)) if rank is trainer else rank.add(
                "w", shape=(4,), dtype="U8"
            )
        job.join()
        with pytest.raises(waybill.DeadlineExceeded, match="every worker of group b"):
            trainer.publish(1, deadline=0.2)


def test_others_that_look_do_not_take_what_a_publish_waits_for(job):
    trainer, _ = job.ranks
    first, over = trainer.publish(1, deadline=PATIENCE), threading.Event()
    first.committed.wait(PATIENCE)

    def look():
        while not over.is_set():
            assert first.sent.done

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for thread in lookers:
        thread.start()
    try:
        for version in range(2, 100):
            trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)
    finally:
        over.set()
    for thread in lookers:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_threads_that_wait_for_earlier_versions_take_the_lead_in_turn(job):
    trainer, _ = job.ranks
    waiting = []
    for version in range(1, 50):
        publish = trainer.publish(version, deadline=PATIENCE)
        waiting.append(threading.Thread(target=publish.committed.wait, args=(PATIENCE,)))
        waiting[-1].start()
    for thread in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_loop_hears_of_a_version_while_a_thread_publishes_the_next(job):
    trainer, _ = job.ranks

    async def serve():
        loop = asyncio.get_running_loop()
        for version in range(1, 50, 2):
            earlier = await loop.run_in_executor(None, trainer.publish, version)
            later = loop.run_in_executor(None, trainer.publish, version + 1)
            await asyncio.wait_for(earlier.committed, PATIENCE)
            await asyncio.wait_for((await later).committed, PATIENCE)

    asyncio.run(serve())


def test_a_refused_publish_leaves_the_rank_as_it_was(job):
    trainer, _ = job.ranks
    trainer.publish(3, deadline=PATIENCE).committed.wait(PATIENCE)
    with pytest.raises(waybill.FailedPrecondition, match="version 3"):
        trainer.publish(3)
    with pytest.raises(waybill.DeadlineExceeded):
        trainer.publish(4, deadline=-1.0)
    with pytest.raises(ValueError, match="deadline"):
        trainer.publish(4, deadline=float("nan"))
    trainer.publish(4, deadline=float("inf")).committed.wait(PATIENCE)


@pytest.mark.parametrize("publish", ["publish", "publish_async"])
def test_a_version_waits_for_the_decision_about_the_one_before(publish):
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        first = trainer.publish(1, deadline=PATIENCE)
        with pytest.raises(waybill.DeadlineExceeded, match="publish version 2"):
            getattr(trainer, publish)(2, deadline=0.05).sent.wait(PATIENCE)
        second = trainer.publish_async(3, deadline=PATIENCE)
        events = worker.events(PATIENCE)
        for version in (1, 3):
            arrived = next(e for e in events if isinstance(e, waybill.Arrived))
            assert arrived.version == version
            assert not second.sent.done or first.committed.done
            arrived.accept()
        second.committed.wait(PATIENCE)
        assert first.outcomes == second.outcomes == {"all": None}


def test_a_version_that_is_published_twice_leaves_the_first_one_alone():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        first = trainer.publish(1, deadline=PATIENCE)
        for _ in range(2):
            with pytest.raises(waybill.FailedPrecondition, match="version 1 was published"):
                trainer.publish(1)
        next(e for e in worker.events(PATIENCE) if isinstance(e, waybill.Arrived)).accept()
        first.committed.wait(PATIENCE)


def test_a_version_that_nobody_has_decided_ends_when_the_trainer_leaves():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("arrived",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        undecided = trainer.publish(1, deadline=PATIENCE)
        trainer.leave()
        with pytest.raises(waybill.WaybillError):
            undecided.committed.wait(PATIENCE)


def test_an_interrupted_publish_is_cancelled_and_the_next_one_is_not():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("prepare",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        events = worker.events(PATIENCE)

        def interrupt_the_first():
            assert isinstance(next(events), waybill.Prepare)
            os.kill(os.getpid(), signal.SIGINT)
            assert isinstance(next(events), waybill.Abort)
            next(events).ready()

        thread = threading.Thread(target=interrupt_the_first)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            trainer.publish(1, deadline=PATIENCE)
        trainer.publish(2, deadline=PATIENCE).committed.wait(PATIENCE)
        thread.join(PATIENCE)
        assert worker.state.shown_version == 2


def test_waiting_for_a_decision_ends_if_the_controller_is_gone_for_good(monkeypatch):
    monkeypatch.setattr("waybill.trainer._DECISION_SECONDS", 0.0)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("commit",))
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        publish = trainer.publish_async(1, deadline=2.0)
        commit = until(worker, waybill.Commit)  # So the version was sent.
        job.controller.close()
        with pytest.raises(waybill.DeadlineExceeded, match="version 1 committed: not within"):
            publish.committed.wait()
        commit.shown()
