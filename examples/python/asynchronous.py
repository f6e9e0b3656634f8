"""A trainer and rollouts that fetch the newest weights between generations: `python asynchronous.py`.

The trainer publishes each step from an image of its weights, and trains on at once, unless a rollout has weights that
are too old. Each rollout is a process and a group of its own. It skips the versions that are published while it
generates.
"""

import os
import subprocess
import sys
from array import array

import waybill

SIZE = 1 << 16  # Floats.
STEPS = 50
ROLLOUTS = ["rollout-0", "rollout-1"]
MAX_BEHIND = 5  # Versions.


def rollout(address, name):
    """Generates with the newest weights until the last step's are there."""
    with waybill.Worker(address, group=name, rank=0, world=1, updates="when asked") as worker:
        worker.add("w", shape=(SIZE,), dtype="float32")
        worker.join()
        version = 0
        while version < STEPS:
            version = worker.fetch()
            generate(name, worker)


def generate(name, worker):
    with worker.snapshot() as snapshot:
        weights = snapshot["w"]  # Gone when this returns: the next fetch may need its memory.
        print(
            f"{name} generates with version {snapshot.version}: {weights[0]:g} to {weights[-1]:g}",
            flush=True,
        )


def main():
    weights = array("f", [0.0] * SIZE)
    with waybill.Controller(listen="127.0.0.1:0", require=ROLLOUTS) as controller:
        rollouts = [
            subprocess.Popen([sys.executable, os.path.abspath(__file__), controller.address, name])
            for name in ROLLOUTS
        ]
        with waybill.Trainer(controller.address, rank=0, world=1, images=True) as trainer:
            trainer.add("w", weights)
            trainer.join()
            for step in range(1, STEPS + 1):
                weights[:] = array("f", [step] * SIZE)  # The optimizer's step.
                # Returns once the weights are copied, and no rollout's are too old.
                trainer.publish(step, max_behind=MAX_BEHIND)
            for process in rollouts:
                process.wait()


if __name__ == "__main__":
    rollout(*sys.argv[1:]) if sys.argv[1:] else main()
