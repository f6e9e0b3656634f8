# SPDX-License-Identifier: Apache-2.0
"""What waits can be interrupted: by a signal, by time, and by another thread that closes the rank."""

import ctypes
import itertools
import signal
import subprocess
import sys
import threading

import pytest
from one_process_job import PATIENCE, Job

import waybill
from waybill.pump import SLICE_SECONDS, keep

JOINING = """
import asyncio
import threading

import waybill

controller = waybill.Controller(listen="127.0.0.1:0")
trainer = waybill.Trainer(controller.address, rank=0, world=2)
trainer.add("w", bytearray(4))
{before}
try:
    print("joining", flush=True)
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("before", "wait"),
    [
        ("", "trainer.join()"),
        ("", "asyncio.run(trainer.join_async())"),
        # Thread.start() itself does not bear interrupts: it has to be over.
        (
            "threading.Thread(target=trainer.join, daemon=True).start()",
            "trainer._pump.until(lambda: False)",
        ),
    ],
    ids=["join", "asyncio", "while_another_thread_waits"],
)
def test_an_interrupt_ends_a_wait(before, wait):
    """The other trainer never comes: nothing but the signal ends it."""
    child = subprocess.Popen(
        [sys.executable, "-c", JOINING.format(before=before, wait=wait)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "joining\n"
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=PATIENCE)
    assert said == "interrupted\n"


def test_an_interrupt_does_not_lose_what_a_function_has_returned():
    kept = []
    interrupt = getattr(ctypes.CDLL(None), "raise")  # It returns before Python looks at the signal.
    with pytest.raises(KeyboardInterrupt):
        keep(kept, interrupt, int(signal.SIGINT))
    assert kept == [0]


def test_a_signal_is_heard_within_a_tenth_of_a_second():
    """A signal that another thread got does not end this one's poll(2): the slice bounds that."""
    assert SLICE_SECONDS <= 0.1


def test_other_threads_run_while_one_waits():
    with Job() as job:
        trainer = job.trainer(rank=0, world=2)
        trainer.add("w", bytearray(4))
        ended = []

        def join():
            with pytest.raises(waybill.Cancelled):
                trainer.join()
            ended.append(True)

        thread = threading.Thread(target=join)
        thread.start()
        while not job.controller.status()["ranks"]:
            pass
        trainer.close()
        thread.join(PATIENCE)
        assert ended


def test_waiting_has_its_time():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        with pytest.raises(waybill.DeadlineExceeded, match="version 1 shown"):
            worker.await_version(1, timeout=0.01)
        with pytest.raises(TimeoutError):
            next(worker.events(timeout=0.0))
        trainer.publish(1).committed.wait(PATIENCE)
        kinds = [type(event) for event in itertools.islice(worker.events(PATIENCE), 3)]
        assert kinds == [waybill.Prepare, waybill.Arrived, waybill.Commit]


def test_joining_without_the_others_names_them():
    with Job() as job:
        trainer = job.trainer(rank=0, world=2)
        trainer.add("w", bytearray(4))
        with pytest.raises(waybill.DeadlineExceeded, match="waiting for .*trainer 1, every worker"):
            trainer.join(deadline=0.2)
