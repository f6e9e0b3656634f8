"""A trainer's side: FSDP2 on a few ranks, each of which sends the rows that it has; nobody gathers.

torchrun --nproc-per-node=4 fsdp2_trainer.py ADDRESS
"""

import sys

import torch
import torch.distributed as dist
import waybill
from torch import nn
from torch.distributed.fsdp import fully_shard


def main(address, versions=3):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 10))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    # Who this is comes from RANK and WORLD_SIZE.
    with waybill.Trainer(address) as trainer:
        trainer.add_module(model)
        trainer.join()
        for version in range(1, versions + 1):
            loss = model(torch.randn(8, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            publish = trainer.publish(version, deadline=60.0)
            # It is sent, and the next step may change the weights. Most trainers wait for no more.
            publish.committed.wait()
            total = sum(p.full_tensor().double().sum().item() for p in model.parameters())
            if dist.get_rank() == 0:
                print(f"version {version}: the weights add up to {total:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
