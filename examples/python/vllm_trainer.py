"""Trains with FSDP2, and lets a vLLM server serve the weights of each step.

torchrun --nproc-per-node=2 vllm_trainer.py MODEL CONTROLLER ENGINE
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ModuleSource
from waybill.integrations.vllm import HTTPClient, WaybillInit


def main(name, controller, server, steps=3):
    dist.init_process_group()
    model = AutoModelForCausalLM.from_pretrained(name)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    # Every rank sends its shards. Only rank 0 talks to the server.
    engine = WeightTransferTrainerFactory.trainer_init(
        WaybillInit(controller), client=HTTPClient(server), source=ModuleSource(model)
    )
    for _ in range(steps):
        tokens = torch.randint(1000, (2, 32), device=model.device)  # In the place of rollouts.
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.send_weights()  # Returns when the server generates with the new weights.
    engine.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
