# SPDX-License-Identifier: Apache-2.0
"""Times updates of a vLLM engine beside the same bytes that are sent and received from C++: two trainers, one worker.

    python vllm_timing.py CPP_RANK [--pairs N]

An engine has random weights of Qwen3-0.6B's shapes, and two trainers send it theirs, which are sharded by FSDP2. Beside them, ranks of
testing/bench:cpp_rank (the program CPP_RANK) send as many bytes in the same shapes, into memory like the engine's. The two jobs take
turns. Prints for each network the median of each job, and the median of the ratios of pairs. The time of vLLM begins when trainer 0
calls send_weights(), and ends when the call has returned on both trainers.
"""

import argparse
import atexit
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import vllm_updates
from checkpoints import as_module, weights

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

MODEL = "qwen3-0.6b"
TRAINERS = 2
TARGET = 1.15


def sender_of(rank, controller, fabric, store, client):
    """Joins a trainer with a shard of random weights, and returns what sends them."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import WaybillInit

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=TRAINERS)
    module = as_module(weights(MODEL, 1))
    fully_shard(module)
    return WeightTransferTrainerFactory.trainer_init(
        WaybillInit(controller, fabric=fabric, deadline=300),
        client=client,
        source=ModuleSource(module),
    )


class VLLMJob:
    """An engine's job: trainer 0 is in this process, and trainer 1 in another one."""

    def __init__(self, fabric, engine, folder):
        import waybill

        self.controller = waybill.Controller(listen="127.0.0.1:0")
        store = folder / f"store-{fabric}"
        given = [self.controller.address, fabric, str(store)]
        self.other = subprocess.Popen(
            [sys.executable, __file__, "--trainer", *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.own = sender_of(0, *given, engine.client)

    def update(self, _version):
        """Returns the seconds that an update takes."""
        began = time.monotonic()
        self.other.stdin.write("send\n")
        self.own.send_weights()
        while self.other.stdout.readline() != "sent\n":
            if self.other.poll() is not None:
                sys.exit("trainer 1 has ended")
        return time.monotonic() - began

    def end(self):
        import torch.distributed as dist

        self.own.shutdown()
        self.other.stdin.close()
        self.other.wait(60)
        dist.destroy_process_group()
        self.controller.close()


def measure(fabric, engine, cpp_rank, pairs, folder):
    """Prints the times over one network."""
    from python_update import Job

    jobs = {
        "C++": Job([cpp_rank], [MODEL, fabric, "shadow-copy"], TRAINERS, 1),
        "vLLM": VLLMJob(fabric, engine, folder),
    }
    seconds = {name: [] for name in jobs}
    for version in range(1, pairs + 3):
        for name, job in jobs.items():
            taken = job.update(version)
            if version > 2:  # The first two touch memory.
                seconds[name].append(taken)
    for job in jobs.values():
        job.end()
    for name, values in seconds.items():
        print(
            f"{fabric:<6}{name:<5}{1e3 * median(values):8.1f} ms "
            f"[{1e3 * min(values):.1f}, {1e3 * max(values):.1f}]"
        )
    ratios = [a / b for a, b in zip(seconds["vLLM"], seconds["C++"], strict=True)]
    print(
        f"{fabric:<6}vLLM over C++, median of {pairs} pairs: {median(ratios):.3f} "
        f"[{min(ratios):.2f}, {max(ratios):.2f}]   target: at most {TARGET}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cpp_rank", nargs="?", metavar="CPP_RANK")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--fabric", choices=["local", "tcp"], action="append")
    parser.add_argument("--trainer", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trainer:
        sender = sender_of(1, *given.trainer, None)
        for _ in sys.stdin:
            sender.send_weights()
            print("sent", flush=True)
        sender.shutdown()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backend = {"weight_transfer_config": {"backend": "waybill"}}
        engine = vllm_updates.Engine(MODEL, 0, folder / "model", **backend)
        atexit.register(engine.stop)
        for fabric in given.fabric or ["local", "tcp"]:
            measure(fabric, engine, given.cpp_rank, given.pairs, folder)


if __name__ == "__main__":
    main()
