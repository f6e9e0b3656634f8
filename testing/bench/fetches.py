# SPDX-License-Identifier: Apache-2.0
"""How a trainer that publishes without a pause and many workers that fetch get on with each other.

    bazel run -c opt //testing/bench:fetches [-- --workers 100 --seconds 20]

One trainer with images publishes a tensor of 1 MiB again and again: first alone with one worker to which versions are pushed, then
with workers that fetch again and again beside it, each a group of its own. Each fetch is verified.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from statistics import median, quantiles

import numpy
import waybill

BYTES = 1 << 20


def fetch_until_told(address, first, count):
    """Workers of this process fetch until its input ends. Prints how often, and the longest fetch."""
    ended = threading.Event()
    fetched, longest = [0] * count, [0.0] * count

    def run(i):
        with waybill.Worker(
            address, group=f"w{first + i}", updates="when asked", rank=0, world=1
        ) as worker:
            worker.add("w", shape=(BYTES,), dtype="U8")
            worker.join()
            before = 0
            while not ended.is_set():
                begin = time.monotonic()
                version = worker.fetch(60.0)
                longest[i] = max(longest[i], time.monotonic() - begin)
                if version > before:
                    assert worker.verify() == version
                    fetched[i] += 1
                before = version
                ended.wait(0.05)  # It computes.

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(sum(fetched), max(longest))


def resident_mib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def publish_for(trainer, weights, version, seconds):
    """Publishes for so long. Returns the next version and how long each publish took."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        weights[:] = version % 251
        begin = time.monotonic()
        trainer.publish(version, deadline=60.0)
        took.append(time.monotonic() - begin)
        version += 1
    return version, took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--of-process", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    weights = numpy.zeros(BYTES, numpy.uint8)
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        trainer = waybill.Trainer(controller.address, images=True, rank=0, world=1)
        trainer.add("w", weights)
        pushed = waybill.Worker(controller.address, group="pushed", rank=0, world=1)
        pushed.add("w", shape=(BYTES,), dtype="U8")
        joining = threading.Thread(target=pushed.join)
        joining.start()
        trainer.join()
        joining.join()
        version, alone = publish_for(trainer, weights, 1, options.seconds / 2)
        command = [sys.executable, os.path.abspath(__file__), controller.address]
        processes = [
            subprocess.Popen(
                [*command, str(first), str(min(options.of_process, options.workers - first))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for first in range(0, options.workers, options.of_process)
        ]  # fmt: skip
        while len(controller.status()["groups"]) < options.workers + 1:
            version, _ = publish_for(trainer, weights, version, 0.5)
        before = resident_mib()
        version, beside = publish_for(trainer, weights, version, options.seconds)
        after = resident_mib()
        for process in processes:
            process.stdin.close()
        done = []
        for process in processes:
            while process.poll() is None:  # They wait for versions.
                version, _ = publish_for(trainer, weights, version, 0.2)
            done.append(process.stdout.read().split())
        trainer.close()
        pushed.close()
    for what, took in (("alone", alone), (f"beside {options.workers} workers", beside)):
        print(
            f"publish {what}: {1e3 * median(took):.2f} ms, 99 of 100 within {1e3 * quantiles(took, n=100)[98]:.2f} ms"
            f" ({len(took)} versions)"
        )
    print(
        f"{sum(int(count) for count, _ in done)} versions fetched and verified, "
        f"the longest fetch {max(float(longest) for _, longest in done):.2f} s"
    )
    print(f"resident memory of trainer and controller: {before:.1f} to {after:.1f} MiB")


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        fetch_until_told(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
