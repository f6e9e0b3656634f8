"""A trainer that never waits for rollouts, which fetch the newest weights between generations: `python asynchronous.py`.

The trainer publishes each step from an image of its weights, and trains on at once. Each rollout is a process and a
group of its own. It skips the versions that are published while it generates.
"""

import os
import subprocess
import sys
from array import array

import waybill

SIZE = 1 << 16  # Floats.
STEPS = 50
ROLLOUTS = 2


def rollout(address, name):
    """Generates with the newest weights until the last step's are there."""
    with waybill.Worker(address, group=name, rank=0, world=1, updates="when asked") as worker:
        worker.add("w", shape=(SIZE,), dtype="float32")
        worker.join()
        version = 0
        while version < STEPS:
            version = worker.fetch()
            generate(worker)


def generate(worker):
    with worker.snapshot() as snapshot:
        weights = snapshot["w"]  # Gone when this returns: the next fetch may need its memory.
        print(
            f"generates with version {snapshot.version}: {weights[0]:g} to {weights[-1]:g}",
            flush=True,
        )


def main():
    weights = array("f", [0.0] * SIZE)
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        rollouts = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), controller.address, f"rollout-{i}"]
            )
            for i in range(ROLLOUTS)
        ]
        with waybill.Trainer(controller.address, rank=0, world=1, images=True) as trainer:
            trainer.add("w", weights)
            trainer.join()
            for step in range(1, STEPS + 1):
                weights[:] = array("f", [step] * SIZE)  # The optimizer's step.
                trainer.publish(step)  # Returns once the weights are copied.
            for process in rollouts:
                process.wait()


if __name__ == "__main__":
    rollout(*sys.argv[1:]) if sys.argv[1:] else main()
