# SPDX-License-Identifier: Apache-2.0
"""Numbered elements: what a loader does to them, against what a recording of it says, for tests."""

import torch

from waybill.torch import record

UNTOUCHED = -1.0


def numbered(tensors):
    """Tensors whose elements count up from 1 over all of them, as {name: shape}."""
    made, first = {}, 1
    for name, shape in tensors.items():
        count = torch.Size(shape).numel()
        made[name] = torch.arange(first, first + count, dtype=torch.float32).reshape(shape)
        first += count
    return made


def replay(recording, tensors):
    """The targets of a recording, filled from these tensors as it says."""
    shown = {}
    for name, target in recording.targets().items():
        room = sum((n - 1) * stride for n, stride in zip(target.shape, target.strides, strict=True))
        shown[name] = torch.full((room + 1,), UNTOUCHED, dtype=torch_dtype(target.dtype))
    for target, to, tensor, of in recording.routes():
        assert tensors[tensor].is_contiguous()
        elements = tensors[tensor].as_strided(of.shape, of.strides, of.offset)
        selected = shown[target].as_strided(to.shape, to.strides, to.offset)
        selected.copy_(elements)
    for target, to, value in recording.fills():
        shown[target].as_strided(to.shape, to.strides, to.offset).fill_(value)
    return {
        name: shown[name].as_strided(target.shape, target.strides)
        for name, target in recording.targets().items()
    }


def torch_dtype(name):
    return {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[name]


def recorded(load, tensors, targets, **options):
    """Records load(tensors, targets) with dicts of shapes; each target is a tensor of its own."""
    on_meta = {name: torch.empty(shape, device="meta") for name, shape in targets.items()}
    described = {name: (shape, "float32") for name, shape in tensors.items()}
    return record(lambda items: load(dict(items), on_meta), described, on_meta, **options)


def loaded(load, tensors, targets):
    """What load(tensors, targets) does to numbered tensors."""
    shown = {name: torch.full(shape, UNTOUCHED) for name, shape in targets.items()}
    load(numbered(tensors), shown)
    return shown


def differences(load, tensors, targets, **options):
    """The names of targets whose elements differ between the loader and its recording."""
    recording = recorded(load, tensors, targets, **options)
    expected = loaded(load, tensors, targets)
    shown = replay(recording, numbered(tensors))
    return [name for name in shown if not torch.equal(shown[name], expected[name])]
