# SPDX-License-Identifier: Apache-2.0
"""Modules under FSDP2 and tensor parallelism on four real ranks: what arrives is the whole model.

This process starts the ranks and uses neither Waybill nor torch's threads: they fork from it.
"""

import multiprocessing
import traceback

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WORLD = 4
PATIENCE = 120
VERSIONS = (1, 2)
HALVES = ("down.left.weight", "down.right.weight")


class Model(nn.Module):
    """33 rows over 4 ranks are 9, 9, 9 and 6; 3 rows leave one rank without any."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(7, 32)
        self.down = nn.Linear(32, 33, dtype=torch.bfloat16)
        self.few = nn.Linear(5, 3)
        self.tied = nn.Linear(7, 32, bias=False)
        self.tied.weight = self.up.weight
        self.register_buffer("steps", torch.arange(5, dtype=torch.int64))


def fsdp2(model):
    mesh = init_device_mesh("cpu", (WORLD,))
    for module in (model.few, model.down, model):
        fully_shard(module, mesh=mesh)


def fsdp2_over_tensor_parallelism(model):
    """Strided shards: `up` is cut by tensor parallelism first, in the same dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    for module in (model.down, model):
        fully_shard(module, mesh=mesh["dp"])


def dtensors(model):
    """Placements by hand, over two dimensions of one matrix, uneven in both."""
    mesh = init_device_mesh("cpu", (2, 2))
    placements = {"few.weight": [Shard(0), Shard(1)], "down.weight": [Replicate(), Shard(0)]}
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        shared = distribute_tensor(parameter.data, mesh, placements.get(name, [Shard(0), Shard(0)]))
        setattr(model.get_submodule(owner), leaf, nn.Parameter(shared))
    model.tied.weight = model.up.weight


def values(name, shape, version):
    """What an element is in a version: unlike any near it, and exact in BF16."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + version * 31 + len(name)) % 251).reshape(shape)


def set_version(model, version):
    """In place, as an optimizer does it."""
    for name, tensor in model.state_dict().items():
        whole = values(name.replace("tied", "up"), tensor.shape, version).to(tensor.dtype)
        if isinstance(tensor, torch.distributed.tensor.DTensor):
            shared = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(shared.to_local())
        else:
            tensor.copy_(whole)


def by_name(trainer, model):
    trainer.add_module(model)


def exported(trainer, model):
    """Lends what an export makes of the whole tensors, as transformers splits stacked experts. No rank gathers any."""

    def export(twin):
        for name, tensor in twin.state_dict().items():
            if name == "down.weight":
                yield from zip(HALVES, tensor.chunk(2, dim=1), strict=True)
            elif name != "steps":
                yield name, tensor

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()  # As FSDP2 leaves parameters after forward() that it does not reshard.
    trainer.add_exported(model, export)
    trainer.add("steps", model.steps)


def train(rank, shard, lend, address, folder, done):
    import waybill

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORLD
    )
    model = Model()
    shard(model)
    with waybill.Trainer(address.get(timeout=PATIENCE), rank=rank, world=WORLD) as trainer:
        lend(trainer, model)
        with torch.no_grad():
            set_version(model, 0)
        trainer.join(PATIENCE)
        for version in VERSIONS:
            with torch.no_grad():
                set_version(model, version)
            trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)
        done.wait(PATIENCE)
    dist.destroy_process_group()


def serve(lend, addresses, done):
    import waybill

    whole = Model().state_dict()
    shown = {name: torch.zeros_like(t) for name, t in whole.items() if name != "tied.weight"}
    parts = {}
    if lend is exported:
        rows, columns = whole["down.weight"].shape
        shape = (rows, columns // 2)
        parts["down.weight"] = [
            waybill.Part(half, shape, at=(0, i * columns // 2)) for i, half in enumerate(HALVES)
        ]
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        with waybill.Worker(controller.address, mode="in-place") as worker:
            for name, tensor in shown.items():
                worker.add(name, tensor, parts=parts.get(name))
            for _ in range(WORLD):
                addresses.put(controller.address)
            worker.join(PATIENCE)
            for event in worker.events(PATIENCE):
                if isinstance(event, waybill.Prepare):
                    event.ready()
                elif isinstance(event, waybill.Commit):
                    for name, tensor in shown.items():
                        expected = values(name, tensor.shape, event.version).to(tensor.dtype)
                        assert torch.equal(tensor, expected), (name, tensor, expected)
                    event.shown()
                    if event.version == VERSIONS[-1]:
                        break
                else:
                    assert isinstance(event, waybill.Arrived), event.reason
            worker.leave()
        done.wait(PATIENCE)  # The trainers have heard what became of the last version.


def run(result, name, function, *arguments):
    try:
        function(*arguments)
        result.put((name, None))
    except BaseException:
        result.put((name, traceback.format_exc()))


@pytest.mark.parametrize("lend", [by_name, exported])
@pytest.mark.parametrize("shard", [fsdp2, fsdp2_over_tensor_parallelism, dtensors])
def test_the_whole_model_arrives(shard, lend, tmp_path):
    fork = multiprocessing.get_context("fork")
    addresses, result, done = fork.Queue(), fork.Queue(), fork.Barrier(WORLD + 1)
    calls = [
        (f"trainer {rank}", train, rank, shard, lend, addresses, tmp_path, done)
        for rank in range(WORLD)
    ]
    calls.append(("worker", serve, lend, addresses, done))
    processes = [fork.Process(target=run, args=(result, *call)) for call in calls]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            name, error = result.get(timeout=PATIENCE)
            assert error is None, f"{name}:\n{error}"
    finally:
        for process in processes:
            process.kill()
            process.join()
