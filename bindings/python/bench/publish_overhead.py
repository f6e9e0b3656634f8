"""What Python adds to a publish: the same small job published by the C ABI's calls, and by Trainer.publish().

bazel run --config=bench //bindings/python/bench:publish_overhead

The two take turns in one job. What a publish takes is mostly the controller's round trips, which vary by more
than Python adds: so its own part is measured by itself, in such a job and with a core that answers at once.
"""

import os
import platform
import statistics
import sys
import time

import numpy
from one_process_job import PATIENCE, Job

from waybill import _waybill
from waybill.pump import PUBLISHED

ROUNDS = 1000


class Answered:
    """The event of a publish."""

    kind, version, group, error = PUBLISHED, 0, "", None

    def __init__(self, token):
        self.token = token


class InstantCore:
    """A trainer and its queue that have sent everything as soon as they are asked."""

    def __init__(self):
        self._events = []

    def publish(self, version, until, committed, digests, nonfinite, token):
        self._events.append(Answered(token))

    def take(self, deadline=0):
        return self._events.pop() if self._events else None


class Clocked:
    """A trainer and its queue, and how long they took, in nanoseconds."""

    def __init__(self, core, queue):
        self._core, self._queue = core, queue
        self.inside = 0

    def publish(self, *arguments):
        begin = time.perf_counter_ns()
        update = self._core.publish(*arguments)
        self.inside += time.perf_counter_ns() - begin
        return update

    def take(self, deadline=0):
        begin = time.perf_counter_ns()
        event = self._queue.take(deadline)
        self.inside += time.perf_counter_ns() - begin
        return event


def by_the_c_abi(trainer, version):
    """As a C program would: publish, then wait for its event, and for the group's outcome."""
    queue, core = trainer._pump.queue, trainer._core
    begin = time.perf_counter_ns()
    deadline = _waybill.now_ns() + PATIENCE * 10**9
    core.publish(version, deadline, False, True, False, 1)
    seen = {}
    while len(seen) < 2:  # In either order.
        event = queue.take(deadline)
        seen[event.kind] = time.perf_counter_ns()
    return (seen[PUBLISHED] - begin) / 1000


def by_python(trainer, version):
    begin = time.perf_counter_ns()
    publish = trainer.publish(version, deadline=PATIENCE)
    end = time.perf_counter_ns()
    if not isinstance(trainer._core, InstantCore):
        publish.committed.wait(PATIENCE)
    return (end - begin) / 1000


def of_it_python(trainer, version):
    """What a publish takes without what the C ABI's calls take."""
    clocked = trainer._core
    clocked.inside = 0
    begin = time.perf_counter_ns()
    publish = trainer.publish(version, deadline=PATIENCE)
    own = time.perf_counter_ns() - begin - clocked.inside
    publish.committed.wait(PATIENCE)
    return own / 1000


def show(what, times):
    low, median, high = statistics.quantiles(times, n=4)
    print(f"{what:44} {median:9.1f} us   quartiles {low:.1f} to {high:.1f}")
    return median


def main():
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    weights = numpy.zeros(1024, numpy.float32)
    c, python = [], []
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", weights)
        worker.add("w", shape=(1024,), dtype="F32")
        job.join()
        by_python(trainer, 1)
        for version in range(2, 2 * ROUNDS, 2):
            c.append(by_the_c_abi(trainer, version))
            python.append(by_python(trainer, version + 1))
        core, queue = trainer._core, trainer._pump.queue
        clocked = Clocked(core, queue)
        trainer._core, trainer._pump.queue = clocked, clocked
        part = [of_it_python(trainer, 2 * ROUNDS + i) for i in range(ROUNDS)]
        instant = InstantCore()
        trainer._core, trainer._pump.queue = instant, instant
        own = [by_python(trainer, version) for version in range(ROUNDS)]
        trainer._core, trainer._pump.queue = core, queue
    show("publish of 4 KiB until sent, C ABI's calls", c)
    show("the same, Trainer.publish()", python)
    show("of that, in Python", part)
    show("Trainer.publish() where the core is instant", own)


if __name__ == "__main__":
    main()
