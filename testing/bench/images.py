# SPDX-License-Identifier: Apache-2.0
"""How long publish() keeps a trainer from training on, from its tensors and from an image of them.

    bazel run -c opt //testing/bench:images [-- --rounds 15 --fabric tcp]

One trainer and one worker in shadow mode, Qwen3-0.6B's shapes (1.19 GB), once without images and once with them.
Both jobs are there at once, idle but for their turns. Beside them, in the same rounds, one thread copies the same
tensors once.
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

    def __init__(self, model, fabric, **options):
        self.controller = waybill.Controller(listen="127.0.0.1:0")
        address = self.controller.address
        folder = os.path.dirname(os.path.abspath(__file__))
        rank = [sys.executable, os.path.join(folder, "python_rank.py")]
        self._worker = subprocess.Popen(
            [*rank, "worker", address, "0", "1", model, fabric, "shadow"],
            stdout=subprocess.DEVNULL,
        )
        held = waybill.Layout(model=model).trainer_manifest("fsdp=1", 0)
        self.weights = numpy.ones(held.region_sizes[0], numpy.uint8)
        self._trainer = waybill.Trainer(address, fabric=fabric, **options)
        self._trainer.add_manifest(held, [self.weights])
        self._trainer.join()

    def update(self, version):
        """Seconds until publish() returns, and until the worker shows the version."""
        begin = time.monotonic()
        publish = self._trainer.publish(version, deadline=120.0)
        published = time.monotonic()
        publish.committed.wait(120.0)
        return published - begin, time.monotonic() - begin

    def end(self):
        self._trainer.close()
        self._worker.terminate()
        self._worker.wait()
        self.controller.close()


def line(what, values, bound=None):
    ratio = ""
    if bound is not None:
        pairs = [value / of for value, of in zip(values, bound, strict=True)]
        ratio = f"   {median(pairs):6.2f} x the copy [{min(pairs):.2f}, {max(pairs):.2f}]"
    print(
        f"{what:<46} {1e3 * median(values):8.1f} ms [{1e3 * min(values):.1f}, {1e3 * max(values):.1f}]{ratio}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--fabric", default="local")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        jobs = {
            images: Job(options.model, options.fabric, images=images) for images in (False, True)
        }
        copy = numpy.zeros_like(jobs[False].weights)
        copies, published, shown = [], {False: [], True: []}, {False: [], True: []}
        for version in range(1, options.rounds + 3):
            begin = time.monotonic()
            numpy.copyto(copy, jobs[True].weights)
            copied = time.monotonic() - begin
            times = {images: job.update(version) for images, job in jobs.items()}
            if version <= 2:  # The first two touch memory.
                continue
            copies.append(copied)
            for images, (until_published, until_shown) in times.items():
                published[images].append(until_published)
                shown[images].append(until_shown)
        for job in jobs.values():
            job.end()
    print(f"{jobs[True].weights.nbytes / 1e9:.2f} GB over {options.fabric}, median [least, most]")
    line("one thread copies the tensors once", copies)
    line("publish() from the tensors", published[False], copies)
    line("publish() from an image (target: 1.3)", published[True], copies)
    line("the worker shows it, from the tensors", shown[False])
    line("the worker shows it, from an image", shown[True])


if __name__ == "__main__":
    main()
