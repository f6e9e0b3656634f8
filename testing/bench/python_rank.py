"""One rank of testing/bench:python_update, in Python: takes commands, tells times.

usage: python_rank.py trainer|worker CONTROLLER RANK WORLD MODEL
"""

import sys
import time

import numpy
import waybill


def tell(*words):
    print(*words, flush=True)


def train(controller, rank, world, layout):
    held = layout.trainer_manifest(f"fsdp={world}", rank)
    weights = numpy.zeros(held.region_sizes[0], numpy.uint8)
    weights[:] = 1  # Touched.
    with waybill.Trainer(controller, rank=rank, world=world) as trainer:
        trainer.add_manifest(held, [weights])
        trainer.join()
        tell("joined")
        for line in sys.stdin:
            begin = time.monotonic_ns()
            publish = trainer.publish(int(line), deadline=60.0)
            publish.committed.wait(60.0)
            tell("published", begin)


def serve(controller, rank, world, layout):
    held = layout.worker_manifest(f"tp={world}", rank)
    with waybill.Worker(controller, rank=rank, world=world) as worker:
        worker.add_manifest(held)
        worker.join()
        tell("joined")
        for event in worker.events():
            if isinstance(event, waybill.Commit):
                tell("shown", time.monotonic_ns())


def main():
    role, controller, rank, world, model = sys.argv[1:]
    play = {"trainer": train, "worker": serve}[role]
    play(controller, int(rank), int(world), waybill.Layout(model=model))


if __name__ == "__main__":
    main()
