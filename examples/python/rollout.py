"""Rollout replicas come and go while a trainer publishes: `python rollout.py`.

Each replica is a process and a group of its own. One that joins late, or comes back after it was killed, gets
the newest version from another replica. The trainer does not stop for any of this.
"""

import os
import subprocess
import sys
from array import array

import waybill

SIZE = 1 << 20  # Floats.


def replica(address, name):
    """Shows what is published, as an inference engine would."""
    with waybill.Worker(address, group=name, rank=0, world=1, ask=["commit"]) as worker:
        worker.add("w", shape=(SIZE,), dtype="float32")
        worker.join()
        for event in worker.events():
            if isinstance(event, waybill.Commit):
                with worker.snapshot() as snapshot:
                    print(f"shows version {event.version}: {snapshot['w'][0]:g}", flush=True)
                event.shown()
            elif isinstance(event, waybill.CaughtUp):
                print(f"has caught up with version {event.version}", flush=True)


class Replica:
    """A replica's process, as the trainer's host starts and loses it."""

    def __init__(self, address, name):
        self.name = name
        command = [sys.executable, os.path.abspath(__file__), address, name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def tells(self, words):
        """Prints what the replica says until it has said `words`."""
        for line in self.process.stdout:
            print(f"{self.name}: {line.strip()}")
            if line.strip() == words:
                return
        sys.exit(f"{self.name} has ended and did not say: {words}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        print(f"{self.name}: killed")


def main():
    weights = array("f", [0.0] * SIZE)
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        trainer = waybill.Trainer(controller.address, rank=0, world=1)
        trainer.add("w", weights)

        def publish(version):
            for i in range(SIZE):
                weights[i] = version / 2
            published = trainer.publish(version)
            published.committed.wait()
            groups = [name for name, error in published.outcomes.items() if error is None]
            print(f"trainer: version {version} went to {', '.join(sorted(groups))}")
            for name in sorted(groups):
                replicas[name].tells(f"shows version {version}: {version / 2:g}")

        def until(kind):
            for event in trainer.events(timeout=60):
                if isinstance(event, kind):
                    return print(f"trainer: {event.group} {kind.__name__[5:].lower()}")

        def start(name):
            replicas[name] = Replica(controller.address, name)

        replicas = {}
        start("rollout-0")
        with trainer:
            trainer.join()
            until(waybill.GroupJoined)
            publish(1)
            start("rollout-1")
            replicas["rollout-1"].tells("has caught up with version 1")
            until(waybill.GroupJoined)
            publish(2)
            replicas["rollout-1"].kill()
            until(waybill.GroupLeft)
            publish(3)
            start("rollout-1")
            replicas["rollout-1"].tells("has caught up with version 3")
            until(waybill.GroupJoined)
            publish(4)
        for running in replicas.values():
            running.kill()


if __name__ == "__main__":
    replica(*sys.argv[1:]) if sys.argv[1:] else main()
