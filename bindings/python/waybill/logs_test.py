# SPDX-License-Identifier: Apache-2.0
"""Lines of the library's log reach the logger "waybill", from whatever thread, and harm nobody there."""

import logging
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from one_process_job import PATIENCE, Job

import waybill

SILENT = """
import {imported}
import sys
import waybill
from one_process_job import Job

job = Job()
trainer, worker = job.trainer(), job.worker()
trainer.add("w", bytearray(4))
worker.add("w", shape=(4,), dtype="U8")
job.join()
job.controller.close()
for event in worker.events():
    if isinstance(event, waybill.Disconnected):
        break
print("over")
sys.exit()  # With ranks that live.
"""


class Kept(logging.Handler):
    """Keeps records, and lets others wait for them."""

    def __init__(self):
        super().__init__()
        self.records = []
        self.changed = threading.Condition()

    def emit(self, record):
        with self.changed:
            self.records.append(record)
            self.changed.notify_all()

    def await_line(self, level, *words):
        def has_it():
            return any(
                record.levelno == level and all(word in record.getMessage() for word in words)
                for record in self.records
            )

        with self.changed:
            assert self.changed.wait_for(has_it, PATIENCE)


@pytest.fixture
def kept():
    logger, handler = logging.getLogger("waybill"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


@contextmanager
def lost_controller():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", bytearray(4))
        worker.add("w", shape=(4,), dtype="U8")
        job.join()
        job.controller.close()
        yield


def test_joining_and_losing_the_controller_are_logged_from_threads_of_the_library(kept):
    with lost_controller():
        kept.await_line(logging.INFO, "trainer 0 of 1", "has joined", "worker 0: ")
        kept.await_line(logging.INFO, "worker 0 of 1", "has joined", "trainer 0: ")
        kept.await_line(logging.WARNING, "worker 0 of 1", "has lost the controller")
    assert all(record.name == "waybill" for record in kept.records)
    assert threading.get_ident() not in {record.thread for record in kept.records}


def test_a_controller_that_is_not_there_is_told_at_once_and_once(kept):
    with waybill.Trainer("127.0.0.1:1") as trainer:
        trainer.add("w", bytearray(4))
        call = trainer._begin_join(PATIENCE)
        words = ("trainer 0 of 1", "cannot reach its controller, and tries again: ", "127.0.0.1:1")
        kept.await_line(logging.WARNING, *words)
        assert not call.done
    assert sum("cannot reach" in record.getMessage() for record in kept.records) == 1


def test_what_a_filter_raises_stays_there(kept, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: raised.append(str(it.exc_value)))
    kept.addFilter(lambda record: 1 / 0)
    with lost_controller():
        pass
    assert set(raised) == {"division by zero"}


@pytest.mark.parametrize("imported", ["logging", "os"])
def test_only_warnings_are_printed_unless_it_is_configured(imported):
    run = subprocess.run(
        [sys.executable, "-c", SILENT.format(imported=imported)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert run.stdout == "over\n"
    lines = run.stderr.splitlines()
    assert lines
    assert all("has lost the controller, and tries to come back: " in line for line in lines)
