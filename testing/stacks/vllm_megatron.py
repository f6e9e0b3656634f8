# SPDX-License-Identifier: Apache-2.0
"""Tests the whole way from Megatron to vLLM: shards of Megatron's fused parameters go into the fused parameters of an engine.

An engine with TP 2 starts with checkpoint 0. Two trainer ranks of Megatron-Core, TP 2 and EP 2, load checkpoints 1 and 2 by mbridge
and send them. After each of them the engine must have, bit for bit, the parameters of an engine that loaded the same checkpoint
from disk, and must generate the same tokens.
"""

import argparse
import atexit
import subprocess
import sys
import tempfile
from pathlib import Path

import vllm_updates
from checkpoints import save
from megatron_exports import Rank
from updates import check, fresh

CASE = "moe-tp2"
SIZES = 2, 1, 2
VERSIONS = 1, 2


def trainer_of(rank, folder, controller, client):
    """Returns Megatron's module of a rank, and what sends it."""
    import torch
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from waybill.integrations.vllm import ExportSource, WaybillInit

    trained = Rank(vllm_updates.CASES[CASE][0], SIZES, rank, folder, torch.bfloat16)
    sender = WeightTransferTrainerFactory.trainer_init(
        WaybillInit(controller, deadline=60),
        client=client,
        source=ExportSource(trained.module, trained.export),
    )
    return trained, sender


def run(folder):
    """Runs the engine and trainer 0."""
    import waybill

    model, options = vllm_updates.CASES[CASE]
    loaded = fresh(vllm_updates.__file__, CASE)
    backend = {"weight_transfer_config": {"backend": "waybill"}}
    engine = vllm_updates.Engine(model, 0, folder / "0", **options, **backend)
    atexit.register(engine.stop)
    check("loaded", CASE, engine.serves(), loaded[0])
    for version in VERSIONS:
        save(model, version, folder / str(version))
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        command = [sys.executable, __file__, "--trainer", controller.address, "--folder", folder]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        trained, sender = trainer_of(0, folder, controller.address, engine.client)
        for version in VERSIONS:
            other.stdin.write(f"{version}\n")
            other.stdin.flush()
            trained.load(folder / str(version))
            sender.send_weights()
            check(f"Megatron's version {version}", CASE, engine.serves(), loaded[version])
        sender.shutdown()
        other.stdin.close()
        if other.wait(60):
            sys.exit("trainer 1 failed")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trainer:
        trained, sender = trainer_of(1, Path(given.folder), given.trainer, None)
        for line in sys.stdin:
            trained.load(Path(given.folder, line.strip()))
            sender.send_weights()
        sender.shutdown()
        return
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))


if __name__ == "__main__":
    main()
