# SPDX-License-Identifier: Apache-2.0
"""Where an engine receives versions: what is chosen, what is kept of the GPU, and what happens if the network does not reach it."""

import logging

import pytest

import waybill
from waybill.integrations.receiving import VARIABLE, Receiving

GB = 10**9


class Memory:
    """Notes what is allocated of a GPU."""

    def __init__(self):
        self.kept = []

    def __call__(self, size):
        self.kept.append(size)
        return object()


def receiving(take=None, needed=GB, gpu=0, free=10 * GB, sleeps=False):
    log = logging.getLogger("test")
    return Receiving(needed, gpu, free, sleeps=sleeps, take=take, log=log)


def chosen(memory, needed=GB, gpu=1, free=10 * GB, sleeps=False):
    """Where an engine joins, in order: each GPU, or None for the host."""
    joined = []
    assert receiving(memory, needed, gpu, free, sleeps).join(lambda its: joined.append(its)) is None
    return joined


@pytest.mark.parametrize(
    ("place", "engine", "joined"),
    [
        ("auto", {}, [1]),
        ("auto", {"needed": 3 * GB}, [None]),
        ("auto", {"sleeps": True}, [None]),
        ("auto", {"gpu": None, "free": 0}, [None]),
        ("auto", {"free": 0}, [None]),
        ("gpu", {"needed": 9 * GB, "sleeps": True}, [1]),
        ("host", {}, [None]),
    ],
)
def test_the_place(monkeypatch, place, engine, joined):
    monkeypatch.setenv(VARIABLE, place)
    memory = Memory()
    assert chosen(memory, **engine) == joined
    assert memory.kept == ([engine.get("needed", GB)] if joined == [1] else [])


def test_auto_is_the_default(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert chosen(Memory()) == [1]


def test_what_is_kept_is_free_before_the_engine_joins():
    kept = {"size": 0}

    class Kept:
        def __init__(self, size):
            kept["size"] = size

        def __del__(self):
            kept["size"] = 0

    its = receiving(Kept)
    assert kept["size"] == GB
    assert its.join(lambda gpu: (gpu, kept["size"])) == (0, 0)


class Unreached:
    """Joins with the host only, since no network reaches the GPU."""

    def __init__(self):
        self.tried = []

    def __call__(self, gpu):
        self.tried.append(gpu)
        if gpu is not None:
            raise waybill.Unimplemented("the tcp fabric reaches host memory only")
        return "joined"


def test_auto_takes_the_host_if_no_network_reaches_the_gpu(monkeypatch, caplog):
    monkeypatch.setenv(VARIABLE, "auto")
    join = Unreached()
    its = receiving()
    assert its.join(join) == "joined"
    assert (
        "because they cannot be in the GPU's: the tcp fabric reaches host memory only"
        in caplog.text
    )
    assert its.join(join) == "joined"  # When trainers come again.
    assert join.tried == [0, None, None]


def test_gpu_is_refused_if_no_network_reaches_it(monkeypatch):
    monkeypatch.setenv(VARIABLE, "gpu")
    with pytest.raises(waybill.Unimplemented, match="reaches host memory only"):
        receiving().join(Unreached())


def test_what_fails_with_the_host_too_is_raised(monkeypatch):
    monkeypatch.setenv(VARIABLE, "auto")

    def join(gpu):
        raise waybill.FailedPrecondition("the trainers publish another model")

    with pytest.raises(waybill.FailedPrecondition, match="another model"):
        receiving().join(join)


def test_a_place_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "disk")
    with pytest.raises(waybill.InvalidArgument, match="WAYBILL_RECEIVE=disk: it is none of auto"):
        chosen(Memory())
    monkeypatch.setenv(VARIABLE, "gpu")
    with pytest.raises(waybill.FailedPrecondition, match="runs on no GPU"):
        chosen(Memory(), gpu=None, free=0)
