# SPDX-License-Identifier: Apache-2.0
"""Updates target and draft of a vLLM server again and again, and kills the trainer that controls it at random moments.

    python vllm_kills.py [--updates N] [--kills N] [--seed N]

Each version sets all elements to its number. After each update, all parameters of both models on all ranks have to be of one version:
the new one, or the one before it if the trainer was killed. The next trainer has to find an engine that it can update.
"""

import argparse
import atexit
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from checkpoints import as_module, weights
from vllm_updates import CASES, VLLM, Server

CASE = "llama-eagle-tp2"


class Trainer:
    """A trainer in another process."""

    def __init__(self, controller, address):
        command = [sys.executable, __file__, "--trainer", controller, address]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def expect(self, word):
        """Returns whether a line that begins with a word has come before the process ended."""
        return any(line.startswith(word) for line in self.process.stdout)

    def send(self, version):
        self.process.stdin.write(f"{version}\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()


def be_trainer(controller, address):
    """Sends the version that each line names."""
    from waybill.integrations.vllm import HTTPClient

    module = as_module(weights(CASES[CASE][0], 0))
    parameters = list(module.parameters())
    client = HTTPClient(address, clear_cache=False)
    sender = VLLM(CASES, {}).sender(controller, client, module)
    print("joined", flush=True)
    for line in sys.stdin:
        for tensor in parameters:
            tensor.data.fill_(int(line))
        sender.send_weights(int(line))
        print("sent", flush=True)
    sender.close()


def shown(server):
    """Returns the numbers that elements of all parameters have."""
    results = server._post("collective_rpc", {"method": "numbers_of_parameters"})["results"]
    return {number for rank in results for number in rank}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trainer", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer:
        return be_trainer(*arguments.trainer)
    rng = random.Random(arguments.seed)
    kills = set(rng.sample(range(2, arguments.updates), arguments.kills))
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), arguments.updates, kills, rng)


def run(folder, updates, kills, rng):
    import waybill

    model, options = CASES[CASE]
    options = options | {"weight_transfer_config": {"backend": "waybill"}}
    server = Server(model, 0, folder / "model", **options)
    atexit.register(server.stop)
    outcomes = {"new": 0, "old": 0}
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        trainer = Trainer(controller.address, server.address)
        trainer.expect("joined")
        last, took = None, 0.3
        for version in range(1, updates + 1):
            began = time.monotonic()
            trainer.send(version)
            if version in kills:
                threading.Event().wait(rng.uniform(0, 1.2 * took))
                trainer.kill()
                trainer = Trainer(controller.address, server.address)
                if not trainer.expect("joined"):
                    sys.exit(f"version {version}: after a kill, the next trainer cannot join")
            elif not trainer.expect("sent"):
                sys.exit(f"version {version}: it was not sent")
            else:
                took = time.monotonic() - began
            found = shown(server)
            if found != {version} and not (version in kills and found == {last}):
                sys.exit(f"version {version}: the parameters are of {found}, after {last}")
            if version in kills:
                outcomes["new" if found == {version} else "old"] += 1
            (last,) = found
        trainer.process.stdin.close()
        trainer.process.wait(60)
    print(
        f"{updates} updates of target and draft, never of two versions; {len(kills)} trainers were killed: "
        f"{outcomes['old']} engines kept the old version, {outcomes['new']} had the new one"
    )


if __name__ == "__main__":
    main()
