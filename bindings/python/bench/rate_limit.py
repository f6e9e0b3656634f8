# SPDX-License-Identifier: Apache-2.0
"""How closely a trainer keeps its rate limit: updates of 128 MiB by tcp, from publish to committed.

bazel run //bindings/python/bench:rate_limit
"""

import os
import platform
import statistics
import time

import numpy
from one_process_job import PATIENCE, Job

UPDATES = 5


def rates_at(limit):
    """The bytes a second of each update."""
    weights = numpy.zeros(32 << 20, numpy.float32)
    rates = []
    with Job() as job:
        trainer, worker = job.trainer(fabric="tcp", rate_limit=limit), job.worker(fabric="tcp")
        trainer.add("w", weights)
        worker.add("w", shape=weights.shape, dtype="F32")
        job.join()
        for version in range(1, UPDATES + 1):
            weights += 1
            begin = time.perf_counter()
            trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)
            rates.append(weights.nbytes / (time.perf_counter() - begin))
    return rates


def main():
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for limit in (50_000_000, 200_000_000, 500_000_000, 0):
        rates = rates_at(limit)
        median = statistics.median(rates)
        of_limit = f"   {median / limit:.3f} of the limit" if limit else ""
        print(
            f"limit {limit / 1e6 or '-':>5} MB/s   median {median / 1e6:7.1f} MB/s   "
            f"{min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f}{of_limit}"
        )


if __name__ == "__main__":
    main()
