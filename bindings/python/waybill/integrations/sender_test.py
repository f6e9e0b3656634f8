# SPDX-License-Identifier: Apache-2.0
"""A trainer that controls engines: what they do while a version arrives and while they switch, and failures on either side."""

import threading
from array import array

import pytest
from one_process_job import PATIENCE, Job, together

import waybill
from waybill.integrations.clients import Client
from waybill.integrations.receiving import worker_of_engine
from waybill.integrations.sender import Sender


class Engine(Client):
    """An engine of one worker, in this process. It fails in the calls whose names are in `failing`."""

    def __init__(self, name="engine"):
        super().__init__()
        self.name = name
        self.calls = []
        self.failing = set()
        self.weights = array("f", [0.0] * 4)
        self.worker = None
        self.paused = False
        self.on_pause = lambda: None

    def describe(self):
        return self.name

    def _call(self, name):
        self.calls.append(name)
        if name in self.failing:
            raise RuntimeError(f"{self.name} cannot {name}")

    def _join(self, init_info):
        self._call("join")
        self.close()
        self.worker = worker_of_engine(init_info, f"test-{init_info['engine']}-0", 0, 1)
        self.worker.add("w", self.weights)
        self.worker.join(PATIENCE)

    def close(self):
        if self.worker is not None:
            self.worker.close()

    def checksums(self):
        self._call("check")
        return {f"w{i}": str(weight) for i, weight in enumerate(self.weights)}

    def _pause_engine(self):
        self.on_pause()
        self._call("pause")
        self.paused = True

    def _start(self):
        self._call("start")

    def _update(self, update_info):
        self._call("update")

        def before_commit():
            assert self.paused
            self._call("vote")

        try:
            self.worker.receive(
                update_info["version"],
                update_info["deadline"],
                before_commit=before_commit,
                after_commit=lambda: self._call("repack"),
            )
        except Exception:  # As in the engines, the trainers hear of it from Waybill.
            self.calls.append("failed")

    def _finish(self, weight_version):
        self._call(f"finish {weight_version}")

    def _resume_engine(self):
        self._call("resume")
        self.paused = False


class SelfEndingEngine(Engine):
    ends_failed_updates = True


class LateStoppingEngine(Engine):
    """Begins an update before it stops, as vLLM does."""

    def start_weight_update(self):
        self._start()
        self._updating = True
        self._stop()


def sender_of(job, weights, clients, *, rank=0, world=1, name="w", images=False):
    trainer = waybill.Trainer(job.controller.address, rank=rank, world=world, images=images)
    trainer.add(name, weights)
    told = {"controller": job.controller.address, "job": "", "token": None, "fabric": "auto"}
    sender = Sender(trainer, clients, told, PATIENCE)
    job.callback(sender.close)
    return sender


@pytest.fixture
def job():
    with Job() as job:
        yield job


@pytest.fixture
def weights():
    return array("f", [1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def engines():
    return [Engine("one"), Engine("two")]


def fails(sender, said):
    with pytest.raises(Exception, match=said) as raised:
        sender.send()
    return str(raised.value)


def test_an_engine_is_paused_around_each_switch_and_shows_what_was_sent(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, [engine])
    for version in (1, 2):
        weights[0] = version
        engine.calls.clear()
        assert sender.send() == version
        calls = ["pause", "start", "update", "vote", "repack", f"finish {version}", "resume"]
        assert engine.calls == calls
        assert engine.weights == weights


def test_an_engine_that_begins_updates_while_it_computes_is_stopped_after_that(job, weights):
    engine = LateStoppingEngine()
    sender_of(job, weights, [engine]).send()
    assert engine.calls[1:4] == ["start", "pause", "update"]
    assert engine.weights == weights


def test_an_engine_is_not_called_before_all_of_the_version_has_come(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, [engine])
    arrived = []
    engine.on_pause = lambda: arrived.append(
        any(isinstance(event, waybill.Arrived) for event in engine.worker._unread)
        or engine.worker._pump.until(lambda: bool(engine.worker._unread), PATIENCE)
    )
    before = engine.weights[:]
    sender.send()
    assert arrived == [True]
    assert engine.weights != before


def test_all_engines_switch_to_a_version_by_one_word_and_the_spread_is_told(job, weights, engines):
    sender = sender_of(job, weights, engines)
    assert sender.last_switch is None
    sender.send()
    assert [engine.weights for engine in engines] == [weights, weights]
    switch = sender.last_switch
    assert switch.version == 1 and len(switch.stopped) == 2
    assert 0 <= switch.spread < max(switch.stopped)


def test_no_engine_votes_before_all_stand_still(job, weights, engines):
    sender = sender_of(job, weights, engines)
    waiting = threading.Event()
    engines[0].on_pause = waiting.set
    engines[1].on_pause = lambda: waiting.wait(PATIENCE)
    sender.send()
    for engine in engines:
        assert engine.calls.index("vote") > engine.calls.index("start")
    assert [engine.weights for engine in engines] == [weights, weights]


def test_with_images_weights_may_change_before_engines_switch(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, [engine], images=True)
    for version in (1, 2):
        trained_on = threading.Event()
        engine.on_pause = lambda on=trained_on: on.wait(PATIENCE)
        weights[0] = version
        sent = weights[:]
        sending = sender.send_async()
        weights[0] = -1.0
        assert not sending.done
        trained_on.set()
        assert sending.wait() == version
        assert engine.weights == sent
        assert sender.last_switch.version == version


def test_a_send_waits_for_the_one_before_and_raises_what_nobody_has_waited_for(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, [engine], images=True)
    engine.failing = {"start"}
    sender.send_async()
    fails(sender, "engine cannot start")
    sending = sender.send_async()
    with pytest.raises(RuntimeError, match="engine cannot start"):
        sending.wait()
    engine.failing = set()
    assert sender.send() == 3
    sender.send_async()
    assert sender.send_async().wait() == 5
    assert engine.weights == weights


def test_a_sender_without_images_sends_nothing_in_the_background(job, weights):
    sender = sender_of(job, weights, [Engine()])
    with pytest.raises(waybill.FailedPrecondition, match="images=True"):
        sender.send_async()
    assert sender.send() == 1


def test_closing_ends_what_is_on_its_way(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, [engine], images=True)
    stopped = threading.Event()
    closed = threading.Event()

    def pause():
        stopped.set()
        closed.wait(PATIENCE)

    engine.on_pause = pause
    sending = sender.send_async()
    stopped.wait(PATIENCE)
    closing = threading.Thread(target=sender.close)
    closing.start()
    closed.set()
    closing.join(PATIENCE)
    assert not closing.is_alive() and sending.done
    assert not engine.paused


def test_an_engine_that_cannot_join_ends_the_joining_with_its_error(job, weights):
    engine = Engine()
    engine.failing = {"join"}
    with pytest.raises(RuntimeError, match="engine cannot join"):
        sender_of(job, weights, [engine])
    again = sender_of(job, weights, [Engine()])  # The failed trainer has left its place.
    assert again.send() == 1


@pytest.mark.parametrize("failing", ["pause", "start"])
def test_no_engine_is_updated_if_one_cannot_begin(job, weights, engines, failing):
    sender = sender_of(job, weights, engines)
    before = engines[0].weights[:]
    engines[1].failing = {failing}
    fails(sender, f"two cannot {failing}")
    assert engines[0].calls[-2:] == ["finish None", "resume"]
    assert not any("update" in engine.calls for engine in engines)
    assert [engine.weights for engine in engines] == [before, before]
    engines[1].failing = set()
    assert sender.send() == 2
    assert [engine.weights for engine in engines] == [weights, weights]


@pytest.mark.parametrize(("kind", "finished"), [(Engine, True), (SelfEndingEngine, False)])
def test_an_engine_that_fails_before_it_votes_resumes_with_the_old_weights(
    job, weights, kind, finished
):
    engine, other = kind(), Engine("other")
    sender = sender_of(job, weights, [engine, other])
    sender.send()
    before = engine.weights[:]
    weights[0] = 9.0
    engine.failing, engine.calls = {"update"}, []
    fails(sender, "engine cannot update")
    assert engine.calls[-1] == "resume" and other.calls[-1] == "resume"
    assert ("finish None" in engine.calls) == finished
    assert [engine.weights, other.weights] == [before, before]
    engine.failing = set()
    sender.send()
    assert [engine.weights, other.weights] == [weights, weights]


def test_a_version_that_a_worker_vetoes_is_shown_by_no_engine(job, weights, engines):
    sender = sender_of(job, weights, engines)
    before = engines[0].weights[:]
    engines[0].failing = {"vote"}
    said = fails(sender, "worker 0: vetoed: one cannot vote")
    assert "paused" not in said
    assert [engine.paused for engine in engines] == [False, False]
    assert [engine.weights for engine in engines] == [before, before]
    engines[0].failing = set()
    sender.send()
    assert [engine.weights for engine in engines] == [weights, weights]


def test_an_engine_that_cannot_repack_stays_paused_until_the_next_version(job, weights, engines):
    sender = sender_of(job, weights, engines)
    engines[1].failing = {"repack"}
    said = fails(sender, "is committed, but worker 0 cannot show it: two cannot repack")
    assert "paused until an update succeeds" in said and said.endswith(": two")
    assert [engine.paused for engine in engines] == [False, True]
    assert engines[0].weights == weights  # It shows what was committed.
    weights[0] = 9.0
    engines[1].failing = set()
    assert sender.send() == 2
    assert [engine.paused for engine in engines] == [False, False]
    assert [engine.weights for engine in engines] == [weights, weights]


def test_an_engine_that_is_gone_when_it_is_to_switch_leaves_the_others_the_old_weights(
    job, weights, engines
):
    sender = sender_of(job, weights, engines)
    before = engines[0].weights[:]
    engines[1].on_pause = engines[1].close  # It is restarted, and has not joined.
    engines[1].failing = {"start"}
    fails(sender, "two cannot start")
    assert engines[0].weights == before and not engines[0].paused
    sender.close()
    engines[1].on_pause, engines[1].failing = (lambda: None), set()
    sender_of(job, weights, engines).send()
    assert [engine.weights for engine in engines] == [weights, weights]


def test_a_trainer_that_is_started_again_goes_on_from_the_committed_version(job, weights):
    engine = Engine()
    first = sender_of(job, weights, [engine])
    assert [first.send(), first.send(7)] == [1, 7]
    first.close()
    assert sender_of(job, weights, [engine]).send() == 8


def test_a_trainer_that_is_started_again_does_not_repeat_a_version_that_failed(job, weights):
    engine = Engine()
    first = sender_of(job, weights, [engine])
    engine.failing = {"update"}
    fails(first, "engine cannot update")
    first.close()
    engine.failing = set()
    assert sender_of(job, weights, [engine]).send() == 2
    assert engine.weights == weights


def test_engines_go_on_until_the_last_trainer_has_sent_its_part(job, weights):
    engine, others = Engine(), array("f", [5.0])
    sends = threading.Event()

    def send_last():
        sender = sender_of(job, others, None, rank=1, world=2, name="other")
        assert engine.worker._pump.until(lambda: bool(engine.worker.state.joined), PATIENCE)
        assert engine.calls == ["join"]
        sends.set()
        sender.send()

    engine.on_pause = lambda: engine.calls.append(sends.is_set())
    assert together([lambda: sender_of(job, weights, [engine], world=2).send(), send_last]) == []
    assert engine.calls[:3] == ["join", True, "pause"]


def test_the_other_trainers_need_no_client(job, weights):
    engine, others = Engine(), array("f", [5.0])

    def send(*arguments, **place):
        assert sender_of(job, *arguments, world=2, **place).send() == 1

    calls = [lambda: send(weights, [engine]), lambda: send(others, None, rank=1, name="other")]
    assert together(calls) == []
    assert engine.weights == weights


class Unspeakable(Exception):
    """An exception that is not made of one text, as those of some libraries."""

    def __init__(self, code, where):
        super().__init__(f"{code} at {where}")


def test_an_engine_that_is_lost_after_the_word_is_named_whatever_its_client_raises(
    job, weights, engines
):
    sender = sender_of(job, weights, engines)
    update = engines[1]._update

    def _update(update_info):
        engines[1].failing = {"repack"}
        update(update_info)
        raise Unspeakable(502, "the proxy")

    engines[1]._update = _update
    with pytest.raises(waybill.FailedPrecondition, match="502 at the proxy; paused until.*: two"):
        sender.send()
    assert [engine.paused for engine in engines] == [False, True]


def test_engines_that_compute_with_the_same_are_told_from_those_that_do_not(job, weights, engines):
    sender = sender_of(job, weights, [*engines, Engine("three")])
    sender.send()
    assert sender.compare_engines() == 8
    engines[1].weights[2] = 7.0
    engines[1].weights[3] = 7.0
    with pytest.raises(waybill.DataLoss) as raised:
        sender.compare_engines()
    assert "two has 2 others than one: w2, w3" in str(raised.value)
    assert "three" not in str(raised.value)
    sender.send()
    assert sender.compare_engines() == 8


def test_an_engine_whose_checker_fails_is_raised(job, weights, engines):
    sender = sender_of(job, weights, engines)
    engines[1].failing.add("check")
    with pytest.raises(RuntimeError, match="two cannot check"):
        sender.compare_engines()
