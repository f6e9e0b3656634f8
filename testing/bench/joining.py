"""Measures what updates notice of a group that joins: 4 trainers, 8 groups of 2, and a ninth that comes and goes.

    bazel run -c opt //testing/bench:joining

All ranks are processes of the `waybill` program. The trainers publish one version after the other, as fast as
they can. In turns of --seconds, the ninth group stays away, or it joins, catches up and leaves, and is back after
--away seconds. The times are those of whole publishes, until every group that is there shows the version: a version
that the ninth group takes part in has an eighth more to move.
"""

import argparse
import json
import os
import queue
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WAYBILL = "tools/waybill/waybill"  # Below the working directory, which is that of the runfiles.
PATIENCE = 60  # Seconds.
GROUPS = 8


def write_checkpoint(folder, megabytes):
    """One tensor in BF16, of a family that is cut by rows."""
    rows = megabytes * 1_000_000 // 2 // 1024 // 4 * 4
    header = {"w": {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, rows * 2048]}}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(os.urandom(2048) * rows)


class Rank:
    """A rank that takes commands, and answers in lines of JSON."""

    def __init__(self, address, checkpoint, fabric, role, rank, world, *more):
        self._answers = queue.Queue()
        self._process = subprocess.Popen(
            [
                WAYBILL, role, "--driven", "--job", "bench", "--controller", address, "--rank", str(rank),
                "--world", str(world), "--checkpoint", checkpoint, "--fabric", fabric, *more,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"event": "ended"})

    def tell(self, command):
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def wait_for(self, event):
        while True:
            found = self._answers.get(timeout=PATIENCE)
            if found["event"] == "ended":
                sys.exit(f"a rank has ended while {event!r} was waited for")
            if found["event"] == event:
                return found

    def leave(self):
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def kill(self):
        self._process.kill()
        self._process.wait()


class Job:
    """The controller, the trainers and the eight groups."""

    def __init__(self, folder, checkpoint, fabric):
        self._checkpoint, self._fabric = checkpoint, fabric
        self._controller = subprocess.Popen(
            [
                WAYBILL, "controller", "--driven", "--job", "bench", "--listen", "127.0.0.1:0",
                "--state", f"{folder}/decisions-{fabric}",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._address = json.loads(self._controller.stdout.readline())["address"]
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
