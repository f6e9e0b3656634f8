# SPDX-License-Identifier: Apache-2.0
"""Measures what updates notice of a group that joins: 4 trainers, 8 groups of 2, and a ninth that comes and goes.

    bazel run -c opt //testing/bench:joining

All ranks are processes of the `waybill` program. The trainers publish one version after the other, as fast as
they can. In turns of --seconds, the ninth group stays away, or it joins, catches up and leaves, and is back after
--away seconds. The times are those of whole publishes, until every group that is there shows the version: a version
that the ninth group takes part in has an eighth more to move.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from driven import Rank, start_controller, write_checkpoint

GROUPS = 8


class Job:
    """The controller, the trainers and the eight groups."""

    def __init__(self, folder, checkpoint, fabric):
        self._checkpoint, self._fabric = checkpoint, fabric
        self._controller, self._address = start_controller(f"{folder}/decisions-{fabric}")
        self.trainers = [self._rank("trainer", t, 4) for t in range(4)]
        self.workers = [
            self._rank("worker", w, 2, "--group", f"g{g}") for g in range(GROUPS) for w in range(2)
        ]
        for rank in [*self.trainers, *self.workers]:
            rank.wait_for("joined")
        self._version = 0

    def _rank(self, *arguments):
        return Rank(self._address, self._checkpoint, self._fabric, *arguments)

    def publish(self):
        """Returns how long a version took, in seconds, and the errors of the eight groups."""
        self._version += 1
        begin = time.monotonic()
        for trainer in self.trainers:
            trainer.tell(f"publish {self._version}")
        errors = [trainer.wait_for("published").get("error", "") for trainer in self.trainers]
        # The ninth may miss a version.
        return time.monotonic() - begin, [e for e in errors if e and "group ninth" not in e]

    def churn(self, over, away, joins):
        """Lets the ninth group join, catch up and leave, until it is over."""
        while not over.wait(away):
            ninth = [self._rank("worker", w, 2, "--group", "ninth") for w in range(2)]
            for worker in ninth:
                worker.wait_for("joined")
            for worker in ninth:
                worker.wait_for("shown")
            for worker in ninth:
                worker.leave()
            joins.append(time.monotonic())

    def close(self):
        for rank in [*self.trainers, *self.workers]:
            rank.kill()
        self._controller.kill()
        self._controller.wait()


def measure(job, seconds, turns, away):
    """Returns the times of publishes while the ninth group is away, while it comes and goes, errors and joins."""
    calm, busy, errors, joins = [], [], [], []
    for _ in range(turns):
        for times in (calm, busy):
            over = threading.Event()
            ninth = threading.Thread(target=job.churn, args=(over, away, joins))
            if times is busy:
                ninth.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                took, failed = job.publish()
                times.append(took)
                errors += failed
            over.set()
            while times is busy and ninth.is_alive():
                errors += job.publish()[1]  # It may wait for a version.
    return calm, busy, errors, joins


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument(
        "--away", type=float, default=3, help="seconds without the ninth group between two joins"
    )
    parser.add_argument("--turns", type=int, default=6, help="with the group, and as many without")
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        write_checkpoint(Path(folder), options.megabytes)
        for fabric in ("local", "tcp"):
            job = Job(folder, folder, fabric)
            try:
                calm, busy, errors, joins = measure(
                    job, options.seconds, options.turns, options.away
                )
            finally:
                job.close()
            medians = statistics.median(calm), statistics.median(busy)
            print(
                f"{fabric:<6} {len(calm)} + {len(busy)} versions, {len(errors)} errors, {len(joins)} joins; median"
                f" {medians[0] * 1e3:.1f} ms without, {medians[1] * 1e3:.1f} ms with: {medians[1] / medians[0]:.2f}"
                "   target: 0 errors, at most 1.10"
            )
            for error in errors[:3]:
                print(" ", error)


main()
