# SPDX-License-Identifier: Apache-2.0
"""Engines that serve block FP8 weights from trainers that hold plain ones.

An engine's loader of an FP8 checkpoint copies two tensors for each quantised weight: "w" in E4M3, and "w_scale_inv" with a scale
for each block of 128 x 128 elements. Trainers publish "w" in BF16 or F32 only. So the loader is recorded over the tensors of such
a checkpoint, and what it copies is received as quantised elements and scales of "w", which the trainers compute on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from waybill.errors import Unimplemented
from waybill.parts import AnyPart, Padding, Part
from waybill.recording import Recording

BLOCK = 128
SCALES = "_scale_inv"
_PLAIN = ("BF16", "F32")

# (shape, dtype) by name, with dtypes as safetensors names them.
Tensors = Mapping[str, tuple[tuple[int, ...], str]]


def has_scales(tensors: Tensors) -> bool:
    """Returns whether the trainers publish scales themselves, so that nothing has to be quantised."""
    return any(name.endswith(SCALES) for name in tensors)


def record_for_engine(
    blocks: Sequence[int] | None,
    record: Callable[[Tensors, Collection[str]], Recording],
    tensors: Tensors,
    targets: Iterable[str],
) -> tuple[Recording, Collection[str]]:
    """Records the loader of an engine that may serve block FP8, and returns the tensors that trainers have to quantise.

    blocks  The size of the blocks in which the engine serves FP8; None if it serves no block FP8.
    record, tensors, targets
            As for record_quantised().

    Raises Unimplemented if the trainers would have to quantise blocks of another size than 128 x 128.
    """
    if blocks is None or has_scales(tensors):
        return record(tensors, ()), ()
    if tuple(blocks) != (BLOCK, BLOCK):
        raise Unimplemented(
            f"the engine serves FP8 in blocks of {tuple(blocks)}, and the trainers publish no scales: Waybill quantises blocks "
            f"of {BLOCK} x {BLOCK}"
        )
    return record_quantised(record, tensors, targets)


def record_quantised(
    record: Callable[[Tensors, Collection[str]], Recording],
    tensors: Tensors,
    targets: Iterable[str],
) -> tuple[Recording, frozenset[str]]:
    """Records a loader of an FP8 checkpoint for trainers that hold plain weights.

    record   Records the loader over tensors; its second argument names targets that may stay unfilled.
    tensors  What the trainers publish.
    targets  The names of all targets.

    Returns the recording, and the names of the tensors that are quantised: those that the loader copies into FP8 targets.
    """
    first = record(tensors, tuple(targets))
    dtypes = {name: target.dtype for name, target in first.targets().items()}
    quantised = frozenset(
        route.tensor
        for route in first.routes()
        if dtypes[route.target] == "F8_E4M3" and tensors[route.tensor][1] in _PLAIN
    )
    return record(as_checkpoint(tensors, quantised), ()), quantised


def as_checkpoint(tensors: Tensors, quantised: Collection[str]) -> Tensors:
    """Returns the tensors of the FP8 checkpoint: quantised ones in E4M3, with their scales."""
    made = dict(tensors)
    for name in quantised:
        shape, _ = tensors[name]
        made[name] = shape, "F8_E4M3"
        made[name + SCALES] = tuple(-(-n // BLOCK) for n in shape), "F32"
    return made


def parts_on_the_way(
    parts: Iterable[AnyPart], tensors: Tensors, quantised: Collection[str]
) -> list[AnyPart]:
    """Returns the parts of a target with quantised elements and scales in place of those of the FP8 checkpoint."""
    return [_on_the_way(part, tensors, quantised) for part in parts]


def _on_the_way(part: AnyPart, tensors: Tensors, quantised: Collection[str]) -> AnyPart:
    if isinstance(part, Padding):
        return part
    name, content = part.tensor, "quantised"
    if name.endswith(SCALES):
        name, content = name.removesuffix(SCALES), "scales"
    if name not in quantised:
        return part
    shape, dtype = tensors[name]
    about: dict[str, Any] = {"quantisation": "fp8-block", "dtype": dtype}
    box = [(begin, end) for begin, end in part.box]
    return Part(name, shape, box, part.at, strides=part.strides, content=content, **about)
