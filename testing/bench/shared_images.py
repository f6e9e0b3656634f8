# SPDX-License-Identifier: Apache-2.0
"""What it costs a trainer with images that several groups want the same format of its tensors.

    bazel run -c opt //testing/bench:shared_images [-- --groups 8 --versions 7]

One trainer sends tensors over TCP to groups of one worker each: in one job to one group, in another to several. The
tensors are FP32, which is cast to F16 on the way, or F16, which is sent as it is. The difference between the two is
what casting costs, and the same casts without images are shown beside it. Each trainer is a process of its own, whose
processor time is measured. All jobs are there at once, and take turns.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from statistics import median

import numpy
import waybill

TENSORS = 4


def train(address, elements, dtype, images):
    """A trainer, which publishes a version for each line, and prints the processor seconds that it took."""
    kinds = {"F32": numpy.float32, "F16": numpy.float16}
    tensors = [numpy.ones(elements // TENSORS, kinds[dtype]) for _ in range(TENSORS)]
    with waybill.Trainer(address, rank=0, world=1, images=images, fabric="tcp") as trainer:
        for i, tensor in enumerate(tensors):
            trainer.add(f"w{i}", tensor)
        trainer.join()
        for line in sys.stdin:
            before = resource.getrusage(resource.RUSAGE_SELF)
            publish = trainer.publish(int(line), deadline=120.0, digests=False)
            publish.committed.wait(120.0)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(used, flush=True)


def serve(address, elements, groups):
    """Workers, each a group of its own, until the input ends."""
    workers = [
        waybill.Worker(address, group=f"g{g}", rank=0, world=1, fabric="tcp") for g in range(groups)
    ]
    for worker in workers:
        for i in range(TENSORS):
            worker.add(f"w{i}", shape=(elements // TENSORS,), dtype="F16")
    joins = [threading.Thread(target=worker.join) for worker in workers]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    sys.stdin.read()
    for worker in workers:
        worker.close()


class Job:
    def __init__(self, groups, dtype, images, elements):
        self._controller = waybill.Controller(listen="127.0.0.1:0")
        me = [sys.executable, os.path.abspath(__file__), "rank", self._controller.address]
        self._processes = [
            subprocess.Popen(
                [*me, str(elements), *role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for role in ([dtype, str(int(images))], [str(groups)])
        ]

    def update(self, version):
        """The processor seconds of the trainer."""
        trainer = self._processes[0]
        trainer.stdin.write(f"{version}\n")
        trainer.stdin.flush()
        return float(trainer.stdout.readline())

    def staged_bytes(self):
        [trainer] = [r for r in self._controller.status()["ranks"] if r["name"] == "trainer 0"]
        return trainer["counters"]["staged_bytes"]

    def end(self):
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait()
        self._controller.close()


def spread(values):
    return f"{1e3 * median(values):7.0f} ms [{1e3 * min(values):.0f}, {1e3 * max(values):.0f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--versions", type=int, default=7)
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        jobs = {
            (dtype, images, groups): Job(groups, dtype, images, options.elements)
            for images in (True, False)
            for dtype in ("F16", "F32")
            for groups in (1, options.groups)
        }
        used = {name: [] for name in jobs}
        for version in range(1, options.versions + 3):
            took = {name: job.update(version) for name, job in jobs.items()}
            if version <= 2:  # The first two touch memory.
                continue
            for name, seconds in took.items():
                used[name].append(seconds)
        versions = options.versions + 2
        staged = {name: job.staged_bytes() / versions for name, job in jobs.items()}
        for job in jobs.values():
            job.end()
    casts = {}
    for images in (True, False):
        for groups in (1, options.groups):
            pairs = zip(used["F32", images, groups], used["F16", images, groups], strict=True)
            casts[images, groups] = [cast - sent for cast, sent in pairs]
    if options.json:
        return print(
            json.dumps(
                {
                    f"{dtype} {'image' if images else 'tensors'} {groups}": {
                        "cpu_seconds": used[dtype, images, groups],
                        "staged_bytes": staged[dtype, images, groups],
                    }
                    for dtype, images, groups in jobs
                }
            )
        )
    print(f"{options.elements * 2 / 1e6:.0f} MB of F16 to each group, median [least, most]")
    for dtype, images, groups in jobs:
        what = {"F32": "cast", "F16": "as it is"}[dtype]
        source = "an image" if images else "the tensors"
        print(
            f"{what:<9} from {source:<11} to {groups} groups: {spread(used[dtype, images, groups])} of processor time, "
            f"{staged[dtype, images, groups] / 1e6:7.1f} MB staged"
        )
    for images in (True, False):
        ratio = median(casts[images, options.groups]) / median(casts[images, 1])
        source = "an image (target: at most 1.3)" if images else "the tensors"
        print(f"casting for {options.groups} groups, of casting for 1, from {source}: {ratio:.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_address, rank_elements, *rest = sys.argv[2:]
        if len(rest) == 2:
            train(rank_address, int(rank_elements), rest[0], bool(int(rest[1])))
        else:
            serve(rank_address, int(rank_elements), int(rest[0]))
    else:
        main()
