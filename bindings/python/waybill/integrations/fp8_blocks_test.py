# SPDX-License-Identifier: Apache-2.0
"""Engines that serve block FP8, trainers that hold BF16: against quantising the whole checkpoint and loading it."""

import pytest
from one_process_job import PATIENCE, Job

import waybill
from waybill.dtypes import NAMES, dtype_number
from waybill.integrations.fp8_blocks import (
    SCALES,
    as_checkpoint,
    has_scales,
    parts_on_the_way,
    record_for_engine,
    record_quantised,
)

torch = pytest.importorskip("torch")

from waybill.torch import record  # noqa: E402

E4M3 = torch.float8_e4m3fn
RANKS, RANK = 2, 1


class Engine(torch.nn.Module):
    """One of two ranks: a fused projection in FP8 with its scales, a projection that is cut by columns, and a norm."""

    def __init__(self, device="cpu"):
        super().__init__()

        def parameter(*shape, dtype):
            made = torch.zeros(shape, dtype=dtype, device=device)
            return torch.nn.Parameter(made, requires_grad=False)

        self.qkv = parameter(256 + 128, 256, dtype=E4M3)
        self.qkv_scale_inv = parameter(3, 2, dtype=torch.float32)
        self.down = parameter(256, 128, dtype=E4M3)
        self.down_scale_inv = parameter(2, 1, dtype=torch.float32)
        self.norm = parameter(256, dtype=torch.bfloat16)

    def load_weights(self, items):
        for name, tensor in items:
            scales = name.endswith(SCALES)
            leaf = name.removesuffix(SCALES)
            if leaf == "norm":
                self.norm.data.copy_(tensor)
            elif leaf == "down":
                target = self.down_scale_inv if scales else self.down
                half = tensor.shape[1] // RANKS
                target.data.copy_(tensor.narrow(1, RANK * half, half))
            else:
                target = self.qkv_scale_inv if scales else self.qkv
                block = 1 if scales else 128
                begin, rows = (0, 2 * block) if leaf == "q" else (2 * block, block)
                target.data.narrow(0, begin, rows).copy_(tensor.narrow(0, RANK * rows, rows))


def published():
    generator = torch.Generator().manual_seed(3)
    shapes = {"q": (512, 256), "k": (256, 256), "down": (256, 256), "norm": (256,)}
    return {
        name: (torch.randn(shape, generator=generator) * 3).bfloat16()
        for name, shape in shapes.items()
    }


def described(tensors):
    return {n: (tuple(t.shape), NAMES[dtype_number(t.dtype)]) for n, t in tensors.items()}


def quantised_checkpoint(tensors):
    """Quantises whole tensors by vLLM's formula: the scale of a block is its largest magnitude over 448, and the elements
    are multiplied by the reciprocal of the scale."""
    made = {}
    for name, tensor in tensors.items():
        if name == "norm":
            made[name] = tensor
            continue
        rows, columns = (n // 128 for n in tensor.shape)
        blocks = tensor.float().reshape(rows, 128, columns, 128)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
        made[name] = (blocks * (1 / scales)).reshape(tensor.shape).to(E4M3)
        made[name + SCALES] = scales.reshape(rows, columns)
    return made


def recording_of(tensors):
    twin = Engine("meta")
    targets = dict(twin.named_parameters())
    return record_quantised(
        lambda its, optional: record(twin.load_weights, its, targets, optional=optional),
        described(tensors),
        targets,
    )


def test_what_arrives_is_what_loading_the_quantised_checkpoint_gives():
    weights, engine, expected = published(), Engine(), Engine()
    expected.load_weights(quantised_checkpoint(weights).items())
    recording, quantised = recording_of(weights)
    parameters = dict(engine.named_parameters())
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        for name, tensor in weights.items():
            trainer.add(name, tensor)
        for name, parts in recording.parts().items():
            its = parts_on_the_way(parts, described(weights), quantised)
            worker.add(name, parameters[name], parts=its)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    for name, parameter in expected.named_parameters():
        found = parameters[name]
        assert torch.equal(found.view(torch.uint8), parameter.view(torch.uint8)), name


def test_only_what_the_loader_copies_into_fp8_is_quantised():
    _, quantised = recording_of(published())
    assert quantised == {"q", "k", "down"}


@pytest.mark.parametrize(
    ("blocks", "names"),
    [(None, {}), ((128, 128), {"w": ((256, 128), "F8_E4M3"), "w_scale_inv": ((2, 1), "F32")})],
    ids=["no_blocks", "scales_are_published"],
)
def test_nothing_is_quantised_without_need(blocks, names):
    asked = []
    record_for_engine(blocks, lambda *its: asked.append(its), names, ())
    assert asked == [(names, ())]


def test_blocks_of_another_size_are_refused():
    tensors = {"w": ((256, 128), "BF16")}
    with pytest.raises(waybill.Unimplemented, match=r"blocks of \(64, 128\)"):
        record_for_engine([64, 128], lambda *_: None, tensors, ())


def test_a_checkpoint_has_a_scale_for_each_block_begun():
    made = as_checkpoint({"w": ((129, 128), "BF16"), "norm": ((7,), "BF16")}, {"w"})
    assert made == {
        "w": ((129, 128), "F8_E4M3"),
        "w_scale_inv": ((2, 1), "F32"),
        "norm": ((7,), "BF16"),
    }
    assert has_scales(made)
    assert not has_scales({"w": ((129, 128), "BF16")})
