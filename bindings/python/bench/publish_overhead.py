# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a publish: one job, published in turn by a C program's calls and by Trainer.publish().

bazel run --config=bench //bindings/python/bench:publish_overhead

What a publish takes is mostly the controller's round trips, which vary by more than Python adds: so each
publish is compared with its neighbour of the other kind, and what is told is the median of these differences.
"""

import math
import os
import platform
import random
import statistics
import sys
import time

import by_c
import numpy
from one_process_job import PATIENCE, Job

PAIRS = 5000


def by_the_c_abi(trainer, version):
    return by_c.publish(trainer._core.handle, trainer._pump.queue.handle, version, PATIENCE * 10**9)


def by_python(trainer, version):
    begin = time.perf_counter_ns()
    publish = trainer.publish(version, deadline=PATIENCE)
    end = time.perf_counter_ns()
    publish.committed.wait(PATIENCE)
    return (end - begin) / 1000


def show(what, times):
    low, median, high = statistics.quantiles(times, n=4)
    print(f"{what:44} {median:9.1f} us   quartiles {low:.1f} to {high:.1f}")


def show_median(what, values):
    """With the interval that holds it in 95 of 100 such runs, whatever the values' distribution."""
    ordered, reach = sorted(values), 1.96 * math.sqrt(len(values)) / 2
    middle = len(values) / 2
    low, high = ordered[int(middle - reach)], ordered[math.ceil(middle + reach)]
    print(f"{what:44} {statistics.median(values):9.1f} us   95 %: {low:.1f} to {high:.1f}")


def main():
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    print(f"load {os.getloadavg()[0]:.1f}, {PAIRS} pairs")
    weights = numpy.zeros(1024, numpy.float32)
    times = {by_the_c_abi: [], by_python: []}
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", weights)
        worker.add("w", shape=(1024,), dtype="F32")
        job.join()
        by_python(trainer, 1)
        order, version = random.Random(7), 1
        for _ in range(PAIRS):
            for publish in order.sample(list(times), 2):
                version += 1
                times[publish].append(publish(trainer, version))
    show("publish of 4 KiB until sent, in C", times[by_the_c_abi])
    show("the same, Trainer.publish()", times[by_python])
    show_median(
        "Python more than C",
        [p - c for c, p in zip(times[by_the_c_abi], times[by_python], strict=True)],
    )


if __name__ == "__main__":
    main()
