# SPDX-License-Identifier: Apache-2.0
"""Measures how fast a group catches up from a sister group, beside an update from the trainers.

    bazel run -c opt //testing/bench:catch_up

For each fabric: two workers get their first version from two trainers; then two more join as another
group, and get it from the first. All four are new processes, so both rates are those of memory that is
touched for the first time. Times are a worker's, from READY to the flip. Options: --rounds, --megabytes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

WAYBILL = os.path.join(os.environ.get("RUNFILES_DIR", "."), "waybill", "tools/waybill/waybill")
TENSORS = 24
PATIENCE = 120  # Seconds.


def write_checkpoint(folder, megabytes):
    """Tensors of equal size, in BF16, of a family that is cut by rows."""
    rows = megabytes * 1_000_000 // TENSORS // 2 // 4096 // 4 * 4
    size = rows * 4096 * 2
    header = {
        f"w{i}": {
            "dtype": "BF16",
            "shape": [rows, 4096],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(TENSORS)
    }
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(TENSORS):
            file.write(os.urandom(1 << 20) * (size >> 20) + bytes(size & 0xFFFFF))
    (folder / "config.json").write_text('{"architectures": ["Other"], "model_type": "other"}')
    return TENSORS * size


class Job:
    """A job whose ranks are processes; they end with it."""

    def __init__(self, checkpoint, fabric):
        self.checkpoint, self.fabric = checkpoint, fabric
        self.processes = contextlib.ExitStack()
        self.folder = self.processes.enter_context(tempfile.TemporaryDirectory())
        controller = self.start(
            "controller", "--listen", "127.0.0.1:0", "--state", f"{self.folder}/decisions",
            out=subprocess.PIPE,
        )  # fmt: skip
        self.address = re.search(r"127\.0\.0\.1:\d+", controller.stdout.readline())[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.processes.close()

    def start(self, *arguments, out=subprocess.DEVNULL):
        process = subprocess.Popen([WAYBILL, *arguments], stdout=out, text=True)
        self.processes.callback(process.wait)
        self.processes.callback(process.kill)
        return process

    def start_ranks(self, role, *arguments):
        for rank in range(2):
            self.start(
                role, "--controller", self.address, "--rank", str(rank), "--world", "2",
                "--checkpoint", str(self.checkpoint), "--fabric", self.fabric, *arguments,
            )  # fmt: skip

    def await_shown(self, group, version):
        """Returns how long the group's slowest worker took, in seconds."""
        watch = self.start(
            "status", "--watch", "--json", "--controller", self.address, out=subprocess.PIPE
        )
        until = time.monotonic() + PATIENCE
        for line in watch.stdout:
            ranks = [r for r in json.loads(line)["ranks"] if r["group"] == group]
            if len(ranks) == 2 and all(r["shown_version"] == version for r in ranks):
                watch.kill()
                return max(
                    max(stage["end_us"] for stage in r["stages"].values()) for r in ranks
                ) / 1e6  # fmt: skip
            if time.monotonic() > until:
                sys.exit(f"group {group} does not show version {version}: {line}")


def measure(checkpoint, fabric):
    """Returns the times of the update and of catching up."""
    with Job(checkpoint, fabric) as job:
        job.start_ranks("worker", "--group", "a")
        job.start_ranks("trainer", "--version", "1")
        update = job.await_shown("a", 1)
        job.start_ranks("worker", "--group", "b")
        return update, job.await_shown("b", 1)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--megabytes", type=int, default=1200)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        size = write_checkpoint(pathlib.Path(folder), chosen.megabytes)
        for fabric in ("local", "tcp"):
            times = [measure(pathlib.Path(folder), fabric) for _ in range(chosen.rounds)]
            ratios = sorted(update / caught_up for update, caught_up in times)
            updates, caught_ups = (sorted(column) for column in zip(*times, strict=True))
            middle = len(times) // 2
            print(
                f"{fabric:<6} update {size / updates[middle] / 1e9:5.2f} GB/s, catching up"
                f" {size / caught_ups[middle] / 1e9:5.2f} GB/s; rate of catching up, of the update's"
                f" {ratios[middle]:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]   target: at least 0.8"
            )


main()
