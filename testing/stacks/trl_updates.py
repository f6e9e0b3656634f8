# SPDX-License-Identifier: Apache-2.0
"""Tests TRL's trainers with a vLLM server: two ranks with FSDP2 train a tiny model, and the server follows.

    python trl_updates.py            runs every case
    python trl_updates.py CASE...    runs the named cases: grpo, async-grpo

After each sync, the server's parameters and tokens must be, bit for bit, those of an engine that loaded the weights which the
trainers had then. Each rank may send only its share of the bytes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import vllm_updates  # Sets vLLM's environment.
from checkpoints import config_of, save_tokenizer
from updates import PROMPT, check

MODEL, RANKS, STEPS = "tiny-qwen3", 2, 3
CASES = ("grpo", "async-grpo")


def use_fsdp2_on_cpu():
    """Makes accelerate shard models with FSDP2, which it does on GPUs only."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    begin = AcceleratorState.__init__

    def begin_with_fsdp2(self, *arguments, fsdp_plugin=None, **options):
        begin(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        self.fsdp_plugin = fsdp_plugin or getattr(self, "fsdp_plugin", None)
        if self.fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = begin_with_fsdp2


class Watch:
    """Notes the weights of all ranks, and what the server serves, after each sync."""

    def __init__(self, server, folder):
        self.server, self.folder, self.syncs = server, folder, 0

    def synced(self, model, accelerator, sender):
        import torch.distributed as dist
        from safetensors.torch import save_file
        from torch.distributed.tensor import DTensor

        whole = {}
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor), f"{name} is not sharded"
            whole[name] = parameter.detach().full_tensor()
        sent = [None] * RANKS
        dist.all_gather_object(sent, sender._trainer.progress()["planned_bytes"])
        served = sum(tensor.numel() * 2 for tensor in whole.values())  # In BF16.
        print(f"the ranks send {sent} of {served} bytes", flush=True)
        assert sent == [served // RANKS] * RANKS
        if accelerator.is_main_process:
            at = self.folder / f"sync-{self.syncs}"
            at.mkdir()
            save_file(whole, at / "model.safetensors", metadata={"format": "pt"})
            (at / "config.json").write_text(json.dumps(config_of(MODEL)))
            (at / "serves.json").write_text(json.dumps(self.server.serves()))
        self.syncs += 1


def prompts():
    """Returns prompts of two tokens."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    texts = {"prompt": [f"w{i} w{i + 1}" for i in range(20, 60)]}
    return Dataset(InMemoryTable.from_pydict(texts), fingerprint="prompts")


def options(folder, server):
    """Returns the options that both trainers have."""
    return {
        "output_dir": str(folder / "output"),
        "vllm_server_base_url": server.address,
        "max_steps": STEPS,
        "num_generations": 4,
        "per_device_train_batch_size": 2,
        "max_completion_length": 8,
        "learning_rate": 0.05,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "gradient_checkpointing": False,
    }


def train_grpo(folder, server, controller):
    """Trains with GRPO, which generates with the server after each sync."""
    import waybill.integrations.trl
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_generation import VLLMGeneration

    waybill.integrations.trl.install(controller, deadline=60)
    watch, sync = Watch(server, folder), VLLMGeneration.sync_weights

    def watched(self):
        sync(self)
        watch.synced(self.model, self.accelerator, self._waybill._sender)

    VLLMGeneration.sync_weights = watched
    GRPOTrainer(
        model=str(folder / "model"),
        args=GRPOConfig(
            use_vllm=True,
            vllm_mode="server",
            vllm_importance_sampling_correction=False,
            **options(folder, server),
        ),
        train_dataset=prompts(),
        reward_funcs=lambda completion_ids, **_: [float(sum(its) % 7) for its in completion_ids],
    ).train()


class Rollouts:
    """Takes the place of TRL's rollout worker: it has samples from the beginning."""

    def __init__(self):
        import queue

        import numpy as np
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        draw = np.random.default_rng(7)
        for i in range(1000):
            self.rollout_buffer.put(
                RolloutSample(
                    prompt=[], completion=[], input_ids=draw.integers(3, 1000, 8), group_id=i // 4,
                    completion_mask=np.arange(8) // 4, old_log_probs=np.full(8, -7.0),
                    advantage=float(i % 2 * 2 - 1), model_version=1, metrics={},
                )
            )  # fmt: skip

    def start(self):
        pass

    def stop(self):
        pass

    def update_model_version(self, model_version):
        pass

    def check_health(self, stale_after_s):
        pass


def attend(query, key, value, queries, keys, *_, softmax_scale, **__):
    """Takes the place of flash attention, which needs a GPU."""
    import torch

    output = torch.empty_like(query)
    for i in range(len(queries) - 1):
        of, to = slice(queries[i], queries[i + 1]), slice(keys[i], keys[i + 1])
        q, k, v = (x.transpose(0, 1) for x in (query[of], key[to], value[to]))
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        output[of] = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, seen.tril(k.shape[1] - q.shape[1]), scale=softmax_scale, enable_gqa=True
        ).transpose(0, 1)
    return output


def train_async_grpo(folder, server, controller):
    """Trains with asynchronous GRPO, on samples that nobody generated."""
    from types import SimpleNamespace

    from trl.experimental.async_grpo import (
        AsyncGRPOConfig,
        AsyncGRPOTrainer,
        async_grpo_trainer,
        packing,
    )
    from waybill.integrations.trl import WeightTransfer

    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend)
    transfer = WeightTransfer(controller, server.address, deadline=60)
    watch, sync = Watch(server, folder), AsyncGRPOTrainer._sync_weight

    def watched(self):
        sync(self)
        watch.synced(self.model, self.accelerator, transfer._shards._sender)

    AsyncGRPOTrainer._sync_weight = watched
    AsyncGRPOTrainer(
        model=str(folder / "model"),
        args=AsyncGRPOConfig(**options(folder, server)),
        train_dataset=prompts(),
        rollout_worker=Rollouts(),
        weight_transfer=transfer,
    ).train()


def be_rank(case, rank, folder, controller, address):
    """Runs one rank of the trainers."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS),
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    server = vllm_updates.Server.__new__(vllm_updates.Server)
    server.address, server.model, server.replicas = address, str(folder / "model"), 1
    use_fsdp2_on_cpu()
    (train_grpo if case == "grpo" else train_async_grpo)(folder, server, controller)


def load_fresh(folder):
    """Prints what an engine serves that loads each of the weights that the trainers had."""
    from vllm import LLM

    engine = vllm_updates.Engine.__new__(vllm_updates.Engine)
    engine.prompts = [{"prompt_token_ids": PROMPT}]
    for at in sorted(folder.glob("sync-*")):
        engine.llm = LLM(
            str(at), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128, dtype="bfloat16",
            compilation_config={"custom_ops": ["none"]},
        )  # fmt: skip
        (at / "fresh.json").write_text(json.dumps(engine.serves()))
        engine.stop()


def run(case, folder):
    """Runs one case."""
    import waybill

    server = vllm_updates.Server(
        MODEL, 0, folder / "model", weight_transfer_config={"backend": "waybill"}
    )
    try:
        save_tokenizer(MODEL, folder / "model")
        with waybill.Controller(listen="127.0.0.1:0") as controller:
            port = str(free_port())
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__, case, "--rank", str(rank), "--folder", folder,
                     "--controller", controller.address, "--server", server.address],
                    env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                )
                for rank in range(RANKS)
            ]  # fmt: skip
            if any([rank.wait() for rank in ranks]):
                sys.exit(f"{case}: a trainer failed")
    finally:
        server.stop()
    subprocess.run([sys.executable, __file__, case, "--fresh", "--folder", folder], check=True)
    tokens = set()
    for at in sorted(folder.glob("sync-*")):
        served, fresh = (
            json.loads((at / f"{its}.json").read_text()) for its in ("serves", "fresh")
        )
        check(at.name, case, served, fresh)
        tokens.add(tuple(served[0]))
    assert len(tokens) >= STEPS, f"{case}: the weights did not change"


def free_port():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main():
    import argparse

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=CASES)
    for name in ("rank", "folder", "controller", "server"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        be_rank(given.cases[0], int(given.rank), Path(given.folder), given.controller, given.server)
    elif given.fresh:
        load_fresh(Path(given.folder))
    else:
        for case in given.cases:
            with tempfile.TemporaryDirectory() as name:
                run(case, Path(name))


if __name__ == "__main__":
    main()
