# SPDX-License-Identifier: Apache-2.0
"""How long a job takes to join whose tensors are many separate arrays.

    bazel run -c opt //testing/bench:many_tensors [-- --tensors 10000 --tensors 150000 --rounds 3]

A controller, a trainer and a worker, threads of one process, have so many arrays of 1 KiB each. The time is that of both join()
calls, whose tensors have been added before: with planning, registering each array, and lanes. The memory is the process's at its
highest so far, without Python, numpy and the arrays; so ask for the fewest tensors first. Each job publishes one version.
"""

import argparse
import resource
import threading
import time
from statistics import median

import numpy
import waybill

BYTES = 1024


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def join(count):
    """Returns the seconds until both ranks have joined, and until a first version is shown, since then."""
    arrays = [numpy.full(BYTES, i % 251, numpy.uint8) for i in range(count)]
    shown = [numpy.zeros(BYTES, numpy.uint8) for _ in range(count)]
    with (
        waybill.Controller(listen="127.0.0.1:0") as controller,
        waybill.Trainer(controller.address, rank=0, world=1) as trainer,
        waybill.Worker(controller.address, mode="in-place", rank=0, world=1) as worker,
    ):
        for i in range(count):
            trainer.add(f"layers.{i}.weight", arrays[i])
            worker.add(f"layers.{i}.weight", shown[i])
        begin = time.monotonic()
        joining = threading.Thread(target=worker.join, args=(300.0,))
        joining.start()
        trainer.join(300)
        joining.join()
        joined = time.monotonic()
        receiving = threading.Thread(target=worker.receive, args=(1, 300.0))
        receiving.start()
        trainer.publish(1, deadline=300.0)
        receiving.join()
        published = time.monotonic()
        assert all((shown[i] == i % 251).all() for i in range(0, count, 997))
    return joined - begin, published - joined


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tensors", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for count in options.tensors or [10_000, 150_000]:
        before = peak_mib()
        rounds = [join(count) for _ in range(options.rounds)]
        joined, published = ([one[i] for one in rounds] for i in (0, 1))
        memory = peak_mib() - before - 2 * count * BYTES / (1 << 20)
        print(
            f"{count} tensors: join {median(joined):.2f} s [{min(joined):.2f}, {max(joined):.2f}], first version "
            f"{median(published):.2f} s, {memory:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
