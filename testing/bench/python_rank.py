# SPDX-License-Identifier: Apache-2.0
"""One rank of testing/bench:python_update, in Python: takes commands, tells times.

usage: python_rank.py trainer|worker CONTROLLER RANK WORLD MODEL FABRIC MODE
"""

import sys
import time

import numpy
import waybill


def tell(*words):
    print(*words, flush=True)


def train(identity, layout, _mode):
    held = layout.trainer_manifest(f"fsdp={identity['world']}", identity["rank"])
    weights = numpy.zeros(held.region_sizes[0], numpy.uint8)
    weights[:] = 1  # Touched.
    with waybill.Trainer(**identity) as trainer:
        trainer.add_manifest(held, [weights])
        trainer.join()
        tell("joined")
        for line in sys.stdin:
            begin = time.monotonic_ns()
            publish = trainer.publish(int(line), deadline=60.0)
            publish.committed.wait(60.0)
            tell("published", begin)


def serve(identity, layout, mode):
    held = layout.worker_manifest(f"tp={identity['world']}", identity["rank"])
    with waybill.Worker(**identity, mode=mode) as worker:
        worker.add_manifest(held)
        worker.join()
        tell("joined")
        for event in worker.events():
            if isinstance(event, waybill.Commit):
                tell("shown", time.monotonic_ns())


def main():
    role, controller, rank, world, model, fabric, mode = sys.argv[1:]
    identity = {"controller": controller, "rank": int(rank), "world": int(world), "fabric": fabric}
    play = {"trainer": train, "worker": serve}[role]
    play(identity, waybill.Layout(model=model), mode)


if __name__ == "__main__":
    main()
