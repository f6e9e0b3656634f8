# SPDX-License-Identifier: Apache-2.0
"""The test of updates that every engine has to pass: two trainers, one of which is killed and comes back.

An engine starts with checkpoint 0. Two trainers with FSDP2 shards send checkpoints 1 and 2. Then one trainer is killed while
it sends checkpoint 3, and the engine keeps checkpoint 2. The trainers are started again and send checkpoint 4. After each step
the engine must have, bit for bit, the parameters of an engine that loaded the same checkpoint from disk, and must generate the
same tokens.
"""

import argparse
import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

from checkpoints import as_module, weights

PROMPT = list(range(3, 43))
TRAINERS = 2
KILLED = 3
# The checkpoints that an engine has at some time.
LOADED = (0, 1, 2, 4)


class Stack(ABC):
    """What a stack brings to the test.

    cases  By name, the model of a case and the engine's options.
    more   Further tests by name, each a function of a folder for files.
    """

    def __init__(self, cases, more):
        self.cases = cases
        self.more = more

    @abstractmethod
    def engine(self, case, version, folder, *, updated):
        """Returns an engine that has loaded a checkpoint from disk.

        It has serves(), which returns its tokens and the digests of its parameters for each rank (or None), stop(), and
        `client`, which controls it.

        updated  Whether the engine will be updated through Waybill.
        """

    @abstractmethod
    def sender(self, controller, client, module):
        """Joins the trainers' job, and returns an object with send_weights() and close()."""


def fresh(script, case):
    """Returns what engines serve that loaded a checkpoint from disk, by version. It runs in another process."""
    done = subprocess.run(
        [sys.executable, script, "--fresh", case], stdout=subprocess.PIPE, check=True
    )
    served = json.loads(done.stdout.splitlines()[-1])
    return {int(version): serves for version, serves in served.items()}


def load_fresh(stack, case, folder):
    """Does the work of fresh() in this process."""
    served = {}
    for version in LOADED:
        engine = stack.engine(case, version, folder / str(version), updated=False)
        served[version] = engine.serves()
        engine.stop()
    return served


class TrainerRank:
    """A trainer in this process."""

    def __init__(self, stack, rank, case, controller, store, client):
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        self.rank, self.model = rank, stack.cases[case][0]
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=TRAINERS
        )
        self.module = as_module(weights(self.model, 0))
        fully_shard(self.module)
        self.parameters = dict(self.module.named_parameters())
        self.sender = stack.sender(controller, client, self.module)

    def send(self, version):
        """Changes the weights to those of a checkpoint, as an optimizer would, and sends them."""
        import torch
        from torch.distributed.tensor import distribute_tensor

        new = weights(self.model, version)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                whole = distribute_tensor(new[name], parameter.device_mesh, parameter.placements)
                parameter.to_local().copy_(whole.to_local())
        if version == KILLED and self.rank > 0:
            os._exit(9)
        return self.sender.send_weights()

    def stop(self):
        import torch.distributed as dist

        self.sender.close()
        dist.destroy_process_group()


class OtherTrainer:
    """Trainer 1, in another process."""

    def __init__(self, script, case, controller, store):
        command = [sys.executable, script, "--trainer", controller, "--store", store, case]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def tell(self, version):
        self.process.stdin.write(f"{version}\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


class Trainers:
    """Both trainers."""

    def __init__(self, stack, script, case, controller, store, engine):
        began = time.monotonic()
        self.case = case
        self.other = OtherTrainer(script, case, controller.address, str(store))
        self.own = TrainerRank(stack, 0, case, controller.address, store, engine.client)
        print(f"{case}: trainers joined in {time.monotonic() - began:.1f} s", flush=True)

    def send(self, version):
        self.other.tell(version)
        began = time.monotonic()
        sent = self.own.send(version)
        print(f"{self.case}: version {sent} sent in {time.monotonic() - began:.3f} s", flush=True)
        return sent

    def stop(self):
        self.own.stop()
        self.other.stop()


def check(what, case, found, wanted):
    """Ends the program unless an engine serves what it should."""
    tokens, parameters = found
    wanted_tokens, wanted_parameters = wanted
    for rank, its in enumerate(parameters or []):
        theirs = wanted_parameters[rank]
        wrong = sorted(name for name in theirs if its.get(name) != theirs[name])
        if wrong or its.keys() != theirs.keys():
            sys.exit(f"{case}, {what}: rank {rank} has {len(wrong)} wrong parameters: {wrong[:5]}")
    if tokens != wanted_tokens:
        sys.exit(f"{case}, {what}: {tokens}, a fresh engine generates {wanted_tokens}")
    print(f"{case}: {what}: {tokens}", flush=True)


def run(stack, script, case, folder):
    """Runs one case."""
    import waybill

    loaded = fresh(script, case)
    engine = stack.engine(case, 0, folder / "model", updated=True)
    atexit.register(engine.stop)
    check("loaded", case, engine.serves(), loaded[0])
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        trainers = Trainers(stack, script, case, controller, folder / "store", engine)
        for version in range(1, KILLED):
            assert trainers.send(version) == version
            check(f"version {version}", case, engine.serves(), loaded[version])
        try:
            trainers.send(KILLED)
            sys.exit(f"{case}: version {KILLED} was sent by one trainer of two")
        except waybill.WaybillError as error:
            print(f"{case}: version {KILLED}: {error}", flush=True)
        check("a trainer was killed", case, engine.serves(), loaded[KILLED - 1])
        trainers.stop()
        trainers = Trainers(stack, script, case, controller, folder / "second store", engine)
        assert trainers.send(KILLED + 1) > KILLED - 1
        check(f"version {KILLED + 1}", case, engine.serves(), loaded[KILLED + 1])
        trainers.stop()


def main(stack, script, description):
    """Runs the cases that the command line names, or all."""
    every = [*stack.cases, *stack.more]
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(every))
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = arguments.cases or every
    for case in cases:
        if case not in every:
            parser.error(f"there is no case {case!r}, but there are {', '.join(every)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.fresh:
            print(json.dumps(load_fresh(stack, cases[0], folder)))
        elif arguments.trainer:
            trainer = TrainerRank(stack, 1, cases[0], arguments.trainer, arguments.store, None)
            for line in sys.stdin:
                trainer.send(int(line))
            trainer.stop()
        elif len(cases) == 1 and cases[0] in stack.more:
            stack.more[cases[0]](folder)
        elif len(cases) == 1:
            run(stack, script, cases[0], folder)
        else:  # Each case has its own process, because an engine does not release everything when it is stopped.
            for case in cases:
                subprocess.run([sys.executable, script, case], check=True)
