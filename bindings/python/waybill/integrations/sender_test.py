"""A trainer that also controls engines: the order of calls, failures on either side, and version numbers."""

from array import array

import pytest
from one_process_job import PATIENCE, Job, together

import waybill
from waybill.integrations.clients import Client, Clients
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

    def _call(self, name):
        self.calls.append(name)
        if name in self.failing:
            raise RuntimeError(f"{self.name} cannot {name}")

    def init_weight_transfer_engine(self, init_info):
        self._call("join")
        self.close()
        self.worker = waybill.Worker(
            init_info["controller"],
            group=self.name,
            rank=0,
            world=1,
            mode="shadow-copy",
            ask=("prepare", "commit"),
        )
        self.worker.add("w", self.weights)
        self.worker.join(PATIENCE)

    def close(self):
        if self.worker is not None:
            self.worker.close()

    def _pause_engine(self):
        self._call("pause")

    def _start(self):
        self._call("start")

    def _update(self, update_info):
        self._call("update")
        self.worker.receive(update_info["version"], update_info["deadline"])

    def _finish(self, weight_version):
        self._call(f"finish {weight_version}")

    def _resume_engine(self):
        self._call("resume")


class SelfEndingEngine(Engine):
    ends_failed_updates = True


def sender_of(job, weights, client):
    trainer = waybill.Trainer(job.controller.address, rank=0, world=1)
    trainer.add("w", weights)
    told = {"controller": job.controller.address, "token": None}
    sender = Sender(trainer, client, told, PATIENCE)
    job.callback(sender.close)
    return sender


@pytest.fixture
def job():
    with Job() as job:
        yield job


@pytest.fixture
def weights():
    return array("f", [1.0, 2.0, 3.0, 4.0])


def test_an_engine_is_paused_around_each_update_and_shows_what_was_sent(job, weights):
    engine = Engine()
    sender = sender_of(job, weights, engine)
    for version in (1, 2):
        weights[0] = version
        engine.calls.clear()
        assert sender.send() == version
        assert engine.calls == ["pause", "start", "update", f"finish {version}", "resume"]
        assert engine.weights == weights


def test_all_engines_get_a_version(job, weights):
    engines = [Engine("one"), Engine("two")]
    sender = sender_of(job, weights, Clients(engines))
    sender.send()
    assert [engine.weights for engine in engines] == [weights, weights]


def test_an_engine_that_cannot_join_ends_the_joining_with_its_error(job, weights):
    engine = Engine()
    engine.failing = {"join"}
    with pytest.raises(RuntimeError, match="engine cannot join"):
        sender_of(job, weights, engine)
    again = sender_of(job, weights, Engine())  # The failed trainer has left its place.
    assert again.send() == 1


@pytest.mark.parametrize("failing", ["pause", "start"])
def test_no_engine_is_updated_if_one_cannot_begin(job, weights, failing):
    engines = [Engine("one"), Engine("two")]
    sender = sender_of(job, weights, Clients(engines))
    engines[1].failing = {failing}
    with pytest.raises(RuntimeError, match=f"two cannot {failing}"):
        sender.send()
    assert engines[0].calls[-2:] == ["finish None", "resume"]
    assert not any("update" in engine.calls for engine in engines)
    engines[1].failing = set()
    sender.send()
    assert [engine.weights for engine in engines] == [weights, weights]


@pytest.mark.parametrize(("kind", "finished"), [(Engine, True), (SelfEndingEngine, False)])
def test_an_engine_that_fails_in_an_update_resumes_with_the_old_weights(
    job, weights, kind, finished
):
    engine = kind()
    sender = sender_of(job, weights, engine)
    sender.send()
    before = engine.weights[:]
    weights[0] = 9.0
    engine.failing, engine.calls = {"update"}, []
    with pytest.raises(RuntimeError, match="engine cannot update"):
        sender.send()
    assert engine.calls[-1] == "resume"
    assert ("finish None" in engine.calls) == finished
    assert engine.weights == before
    engine.failing = set()
    sender.send()
    assert engine.weights == weights


def test_a_trainer_that_is_started_again_goes_on_from_the_committed_version(job, weights):
    engine = Engine()
    first = sender_of(job, weights, engine)
    assert [first.send(), first.send(7)] == [1, 7]
    first.close()
    assert sender_of(job, weights, engine).send() == 8


def test_a_trainer_that_is_started_again_does_not_repeat_a_version_that_failed(job, weights):
    engine = Engine()
    first = sender_of(job, weights, engine)
    engine.failing = {"update"}
    with pytest.raises(RuntimeError, match="engine cannot update"):
        first.send()
    first.close()
    engine.failing = set()
    assert sender_of(job, weights, engine).send() == 2
    assert engine.weights == weights


def test_the_other_trainers_need_no_client(job, weights):
    engine = Engine()
    others = array("f", [5.0])

    def rank(number, name, tensor, client):
        trainer = waybill.Trainer(job.controller.address, rank=number, world=2)
        trainer.add(name, tensor)
        told = {"controller": job.controller.address, "token": None}
        sender = Sender(trainer, client, told, PATIENCE)
        job.callback(sender.close)
        assert sender.send() == 1

    calls = [lambda: rank(0, "w", weights, engine), lambda: rank(1, "other", others, None)]
    assert together(calls) == []
    assert engine.weights == weights
