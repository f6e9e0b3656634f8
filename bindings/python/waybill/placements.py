# SPDX-License-Identifier: Apache-2.0
"""Translates the placements of a torch DTensor to the boxes that this rank holds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product
from typing import Any

from waybill.errors import InvalidArgument

# Half-open ranges of one dimension, in the order in which they lie in memory.
Ranges = list[tuple[int, int]]
Box = tuple[tuple[int, int], ...]


def is_dtensor(tensor: Any) -> bool:
    """Returns whether this is a DTensor, without importing torch."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _length(ranges: Ranges) -> int:
    return sum(end - begin for begin, end in ranges)


def _cut(ranges: Ranges, first: int, last: int) -> Ranges:
    """Returns elements [first, last) of the ranges in a row."""
    kept: Ranges = []
    passed = 0
    for begin, end in ranges:
        low = begin + max(first - passed, 0)
        high = min(end, begin + last - passed)
        if low < high:
            if kept and kept[-1][1] == low:
                kept[-1] = (kept[-1][0], high)
            else:
                kept.append((low, high))
        passed += end - begin
    return kept


def chunk(ranges: Ranges, count: int, index: int) -> Ranges:
    """Returns piece `index` of `count`, as torch.chunk cuts: equal ones, then a smaller one, then none.

    >>> [chunk([(0, 33)], 4, i) for i in range(4)]
    [[(0, 9)], [(9, 18)], [(18, 27)], [(27, 33)]]
    """
    length = _length(ranges)
    size = -(-length // count)
    return _cut(ranges, min(size * index, length), min(size * (index + 1), length))


def strided_chunk(ranges: Ranges, count: int, index: int, split_factor: int) -> Ranges:
    """Returns the same for _StridedShard: piece `index` of each of `split_factor` pieces.

    >>> strided_chunk([(0, 8)], 2, 1, split_factor=2)
    [(2, 4), (6, 8)]
    """
    pieces = [chunk(ranges, split_factor, piece) for piece in range(split_factor)]
    return _joined(part for piece in pieces for part in chunk(piece, count, index))


def _joined(parts: Iterable[tuple[int, int]]) -> Ranges:
    joined: Ranges = []
    for begin, end in parts:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def boxes_of(name: str, dtensor: Any) -> list[tuple[Box, tuple[int, ...]]]:
    """Returns the boxes of the whole tensor that lie in dtensor.to_local(), and where each begins in it.

    Strided shards have two boxes or more. A rank outside the mesh, or without rows, has none.
    """
    mesh, shape = dtensor.device_mesh, tuple(dtensor.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    dimensions: list[Ranges] = [[(0, extent)] for extent in shape]
    for mesh_dimension, placement in enumerate(dtensor.placements):
        if placement.is_replicate():
            continue
        count, index = mesh.size(mesh_dimension), coordinate[mesh_dimension]
        dimension = getattr(placement, "dim", None)
        if dimension is None:
            raise InvalidArgument(
                f'"{name}": placement {placement!r} holds no elements of the tensor: only Shard, _StridedShard and '
                "Replicate do; redistribute() it first"
            )
        split_factor = getattr(placement, "split_factor", None)
        ranges = dimensions[dimension]
        dimensions[dimension] = (
            chunk(ranges, count, index)
            if split_factor is None
            else strided_chunk(ranges, count, index, split_factor)
        )
    return boxes_of_ranges(dimensions)


def boxes_of_ranges(dimensions: list[Ranges]) -> list[tuple[Box, tuple[int, ...]]]:
    """Returns all boxes with one range of each dimension, and where each begins in the array that packs them.

    >>> boxes_of_ranges([[(2, 4), (6, 8)], [(0, 3)]])
    [(((2, 4), (0, 3)), (0, 0)), (((6, 8), (0, 3)), (2, 0))]
    """
    placed = []
    for ranges in dimensions:
        begins = [0]
        for begin, end in ranges:
            begins.append(begins[-1] + end - begin)
        placed.append(list(zip(ranges, begins)))
    return [
        (tuple(range_ for range_, _ in picked), tuple(begin for _, begin in picked))
        for picked in product(*placed)
    ]
