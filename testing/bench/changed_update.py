# SPDX-License-Identifier: Apache-2.0
"""How long an update takes if everything travels, and if only what changed does.

    bazel run -c opt //testing/bench:changed_update [-- --rate 125e6 --changed 0 0.01 0.2 1]

One trainer and one worker in shadow mode over TCP, Qwen3-0.6B's shapes (1.19 GB). The trainer may send so many bytes a
second as a link of 1 Gbit/s carries. Both jobs are there at once, idle but for their turns: one trainer has images, and
one tells what changed. Between two versions, so many of the BF16 elements change by one unit in the last place, at random.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy
import waybill


class Job:
    """A trainer in this process and a worker in another one."""

    def __init__(self, model, rate, changes):
        self._controller = waybill.Controller(listen="127.0.0.1:0")
        address = self._controller.address
        folder = os.path.dirname(os.path.abspath(__file__))
        rank = [sys.executable, os.path.join(folder, "python_rank.py")]
        self._worker = subprocess.Popen(
            [*rank, "worker", address, "0", "1", model, "tcp", "shadow"],
            stdout=subprocess.DEVNULL,
        )
        held = waybill.Layout(model=model).trainer_manifest("fsdp=1", 0)
        self._weights = numpy.zeros(held.region_sizes[0] // 2, numpy.uint16)
        self._weights[:] = (
            numpy.arange(self._weights.size, dtype=numpy.uint64) * 40503 % 16384 + 0x3000
        )
        self._trainer = waybill.Trainer(
            address, fabric="tcp", images=True, changes=changes, rate_limit=rate
        )
        self._trainer.add_manifest(held, [self._weights.view(numpy.uint8)])
        self._trainer.join()
        self._sent = 0

    @property
    def nbytes(self):
        return self._weights.nbytes

    def change(self, density, seed):
        if density >= 1:
            self._weights += 1
        else:
            count = int(density * self._weights.size)
            self._weights[
                numpy.random.default_rng(seed).integers(0, self._weights.size, count)
            ] ^= 1

    def update(self, version):
        """Seconds until publish() returns and until the worker shows the version, and bytes on the network."""
        begin = time.monotonic()
        publish = self._trainer.publish(version, deadline=120.0)
        published = time.monotonic()
        publish.committed.wait(120.0)
        shown = time.monotonic()
        sent = self._count_sent(version)
        bytes_sent, self._sent = sent - self._sent, sent
        return published - begin, shown - begin, bytes_sent

    def _count_sent(self, version):
        while True:  # The report follows the update.
            for rank in self._controller.status()["ranks"]:
                if rank["name"] == "trainer 0" and rank["version"] == version:
                    return rank["counters"]["tcp.sent_bytes"]

    def end(self):
        self._trainer.close()
        self._worker.terminate()
        self._worker.wait()
        self._controller.close()


def spread(values, scale=1.0):
    return f"{scale * median(values):9.1f} [{scale * min(values):.1f}, {scale * max(values):.1f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--rate", type=float, default=125e6, help="bytes per second; 0: no limit")
    parser.add_argument("--changed", type=float, nargs="+", default=[0, 0.001, 0.01, 0.1, 1])
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        jobs = {
            changes: Job(options.model, int(options.rate), changes) for changes in (False, True)
        }
        print(
            f"{jobs[True].nbytes / 1e9:.2f} GB over TCP, at most {options.rate / 1e6:.0f} MB/s; median [least, most]"
        )
        print(
            f"{'changed':>8} {'travels':>10} {'publish ms':>24} {'shown ms':>26} {'MB sent':>10} {'ratio':>8}"
        )
        version = 0
        for density in options.changed:
            results = {False: [], True: []}
            for warm in range(options.rounds + (2 if version == 0 else 1)):
                version += 1
                for changes, job in jobs.items():
                    job.change(density, version)
                    result = job.update(version)
                    if warm >= (2 if density == options.changed[0] else 1):
                        results[changes].append(result)
            whole = [shown for _, shown, _ in results[False]]
            for changes, what in ((False, "everything"), (True, "changes")):
                published, shown, sent = zip(*results[changes], strict=True)
                ratio = median(of / by for of, by in zip(whole, shown, strict=True))
                print(
                    f"{100 * density:7g}% {what:>10} {spread(published, 1e3):>24} {spread(shown, 1e3):>26}"
                    f" {median(sent) / 1e6:10.2f} {ratio:7.1f}x",
                    flush=True,
                )
        for job in jobs.values():
            job.end()


if __name__ == "__main__":
    main()
