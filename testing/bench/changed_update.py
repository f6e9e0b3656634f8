# SPDX-License-Identifier: Apache-2.0
"""How long an update takes, and its trainer waits, from the tensors, from an image, and if only what changed travels.

    bazel run -c opt //testing/bench:changed_update [-- --rate 125e6 --changed 0 0.01 0.2 1]
    bazel run -c opt //testing/bench:changed_update -- --ways image always auto --rate 0 --warm 12

One trainer and one worker in shadow mode over TCP, Qwen3-0.6B's shapes (1.19 GB). The trainer may send so many bytes a
second as a link of 1 Gbit/s carries. All jobs are there at once, idle but for their turns. Between two versions, so many of
the BF16 elements change by one unit in the last place, at random. Before each density, --warm versions are not counted.
"""

import argparse
import os
import sys
import tempfile
from statistics import median

import numpy
from images import Job

JOBS = {
    "tensors": ("everything, from the tensors", {}),
    "image": ("everything, from an image", {"images": True}),
    "always": ("what changed, between two images", {"changes": "always"}),
    "auto": ("whichever was faster lately", {"changes": "auto"}),
}


class ChangingJob(Job):
    """Weights that change from version to version, and how much of them is sent."""

    def __init__(self, model, fabric, rate, **options):
        super().__init__(model, fabric, rate_limit=rate, **options)
        self._elements = self.weights.view(numpy.uint16)
        pattern = (numpy.arange(16384, dtype=numpy.uint32) * 40503 % 16384 + 0x3000).astype(
            numpy.uint16
        )
        for at in range(0, self._elements.size, pattern.size):
            self._elements[at : at + pattern.size] = pattern[: self._elements.size - at]
        self._sent = 0

    def change(self, density, seed):
        if density >= 1:
            self._elements += 1
        else:
            count = int(density * self._elements.size)
            places = numpy.random.default_rng(seed).integers(0, self._elements.size, count)
            self._elements[places] ^= 1

    def count_sent(self, version):
        """Bytes on the network since the last call, once the trainer has reported the version."""
        while True:
            for rank in self.controller.status()["ranks"]:
                if rank["name"] == "trainer 0" and rank["version"] == version:
                    sent = rank["counters"]["sent_bytes"] - rank["counters"]["spared_bytes"]
                    before, self._sent = self._sent, sent
                    return sent - before


def spread(values, scale=1.0):
    return f"{scale * median(values):9.1f} [{scale * min(values):.1f}, {scale * max(values):.1f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--ways", nargs="+", choices=list(JOBS), default=list(JOBS)[:3])
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--fabric", default="tcp")
    parser.add_argument("--rate", type=float, default=125e6, help="bytes per second; 0: no limit")
    parser.add_argument("--changed", type=float, nargs="+", default=[0, 0.001, 0.01, 0.1, 1])
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        jobs = {
            way: ChangingJob(options.model, options.fabric, int(options.rate), **JOBS[way][1])
            for way in options.ways
        }
        print(
            f"{jobs['image'].weights.nbytes / 1e9:.2f} GB over {options.fabric}, at most {options.rate / 1e6:.0f} MB/s; median [least, most]"
        )
        print(
            f"{'changed':>8} {'travels':<32} {'publish ms':>24} {'shown ms':>26} {'MB sent':>10} {'ratio':>8}"
        )
        version = 0
        for density in options.changed:
            results = {way: [] for way in jobs}
            warm = options.warm + (1 if version == 0 else 0)
            for turn in range(warm + options.rounds):
                version += 1
                for way, job in jobs.items():
                    job.change(density, version)
                    result = (*job.update(version), job.count_sent(version))
                    if turn >= warm:
                        results[way].append(result)
            whole = [shown for _, shown, _ in results["image"]]
            for way, result in results.items():
                published, shown, sent = zip(*result, strict=True)
                ratio = median(of / by for of, by in zip(whole, shown, strict=True))
                print(
                    f"{100 * density:7g}% {JOBS[way][0]:<32} {spread(published, 1e3):>24} {spread(shown, 1e3):>26}"
                    f" {median(sent) / 1e6:10.2f} {ratio:7.1f}x",
                    flush=True,
                )
        for job in jobs.values():
            job.end()


if __name__ == "__main__":
    main()
