# SPDX-License-Identifier: Apache-2.0
"""Publishes thousands of versions, and looks for what grows.

usage: bazel run //testing/process_drills:soak -- [--updates N] [--row N] [--fabric local|tcp|verbs] [--json]

A controller, two trainers, two workers and a replica update a small tensor. In a thousand updates the replica
leaves and joins twenty times, a worker is killed and replaced ten times, and a trainer five times. A row is
printed for each thousand: what the processes that live all the time hold at its end, and how long its updates
took for the trainer. An update that waits for a new process is not timed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import drill_machine
import drilled_job
from drilled_job import CONTROLLER, REPLICA, Failure, Job

ROWS = 32  # 64 KiB.
WATCHED = [CONTROLLER, "trainer 0", "worker 0"]
# Before which updates of each hundred; a trainer dies in every second hundred only.
LEAVES, JOINS = (20, 70), (25, 75)
WORKER_DIES, TRAINER_DIES = 45, 85


def _status_kib(pid, field):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def sample(job):
    """What each watched process holds."""
    held = {}
    for name in WATCHED:
        pid = job.processes[name].pid
        held[name] = {
            "resident_kib": _status_kib(pid, "VmRSS"),
            "shared_kib": _status_kib(pid, "RssShmem"),
            "threads": _status_kib(pid, "Threads"),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        }
    held["decisions_bytes"] = (job.disk.path / "decisions").stat().st_size
    return held


def disturb(job, update):
    """Lets processes come and go before some updates. Returns whether the next one waits for one."""
    hundred, place = divmod(update, 100)
    if place in LEAVES:
        job.leave(REPLICA)
    elif place in JOINS:
        job.start(REPLICA)
        job.await_joined(REPLICA)
        return True
    elif place == WORKER_DIES or (place == TRAINER_DIES and hundred % 2 == 0):
        name = "worker 1" if place == WORKER_DIES else "trainer 1"
        job.kill(name)
        job.start(name)
        job.await_joined(name)
        return True
    return False


def soak(job, updates, row_updates, show=None):
    """Returns a row for each so many updates; `show` gets each when it is there."""
    rows, seconds = [], []
    for update in range(1, updates + 1):
        waits = disturb(job, update)
        job.begin_publish()
        begin = time.perf_counter()
        errors = job.end_publish()
        # The replica may still be connecting to a new trainer, and catches up.
        if not all(map(job.is_of_replica, errors)):
            raise Failure(f"update {update}: {errors}")
        if not waits:
            seconds.append(time.perf_counter() - begin)
        if update % row_updates == 0:
            job.check()
            slow = statistics.quantiles(seconds, n=100)
            rows.append(
                {
                    "updates": update,
                    "p50_seconds": slow[49],
                    "p99_seconds": slow[98],
                    **sample(job),
                }
            )
            if show:
                show(rows[-1])
            seconds = []
    return rows


def print_head():
    head = "".join(f"{f'{name}: MiB, shm, threads, fds':>40}" for name in WATCHED)
    print(f"{'updates':>8}{'p50 ms':>8}{'p99 ms':>8}{head}{'log kB':>8}")


def print_row(row):
    cells = []
    for name in WATCHED:
        held = row[name]
        mib, shared = held["resident_kib"] / 1024, held["shared_kib"] / 1024
        cells.append(f"{mib:.2f} {shared:.2f} {held['threads']} {held['descriptors']}")
    print(
        f"{row['updates']:>8}{row['p50_seconds'] * 1e3:>8.2f}{row['p99_seconds'] * 1e3:>8.2f}"
        + "".join(f"{cell:>40}" for cell in cells)
        + f"{row['decisions_bytes'] / 1e3:>8.1f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--updates", type=int, default=10000, help="10,000 by default")
    parser.add_argument("--row", type=int, default=1000, help="updates of a row; 1,000 by default")
    parser.add_argument("--fabric", choices=["local", "tcp", "verbs"], default="local")
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object instead of rows"
    )
    options = parser.parse_args()
    if not Path(drilled_job.WAYBILL).exists():
        sys.exit(f"{drilled_job.WAYBILL} is missing: run this with bazel run")
    drill_machine.enter_own_mounts()
    if not options.json:
        print_head()
    with tempfile.TemporaryDirectory(prefix="waybill-soak-") as folder:
        job = Job(Path(folder), options.fabric, rows=ROWS)
        try:
            rows = soak(job, options.updates, options.row, None if options.json else print_row)
        except Failure as failure:
            sys.exit(str(failure))
        finally:
            job.close()
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
