# SPDX-License-Identifier: Apache-2.0
"""Which elements of checkpoint tensors a loader puts where, as data.

The JSON form is an object with these members. Lists are sorted, so equal recordings have equal texts.

    waybill_recording   The version of this format: 1.
    tensors   What the loader is given: {"name", "shape", "dtype", "grids"} for each pattern of names.
    targets   What it fills: the same and "strides", of the parameter's memory in elements.
    routes    What it copies: {"target", "tensor", "shape", "target_strides", "tensor_strides", "grids"}.
              The element at target offset + sum(i * target_strides) is the one at tensor offset + sum(i *
              tensor_strides), for each index i within the shape. Tensors are dense, with the last dimension fastest.
    fills     Constants that it sets: {"target", "shape", "target_strides", "value", "grids"}.

A name is the list of texts around its numbers: ["layers.", ".weight"] for "layers.7.weight". A grid is [first row,
[count, step of the row], ...]: nested loops over rows, the last one fastest. A row has the numbers of the names in
order, target before tensor, and then the offsets, target before tensor, in elements. No two routes or fills set the
same element of a target. A copy between dtypes rounds as torch's copy_() does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from waybill.dtypes import NAMES, dtype_number
from waybill.errors import InvalidArgument
from waybill.holdings import Holdings
from waybill.memory import Memory
from waybill.parts import AnyPart, Padding, Part
from waybill.patterns import Grid, Pieces, Row, compress, join, split
from waybill.planning import Manifest
from waybill.strided import MOST_BOXES, Shape, View, boxes, pair, size

FORMAT = 1


class Tensor(NamedTuple):
    """A tensor of the checkpoint, dense; `dtype` is a name as "BF16"."""

    shape: Shape
    dtype: str


class Target(NamedTuple):
    """A parameter: its memory has these strides, in elements, and no holes."""

    shape: Shape
    strides: Shape
    dtype: str


class Route(NamedTuple):
    """The elements of a tensor that `of` selects go where `to` says in the target; the views have one shape."""

    target: str
    to: View
    tensor: str
    of: View


class Fill(NamedTuple):
    """The elements of a target that `to` selects are set to a constant."""

    target: str
    to: View
    value: float


# Keys of the tables: everything but the numbers.
_RouteKey = tuple[Pieces, Pieces, Shape, Shape, Shape]
_FillKey = tuple[Pieces, Shape, Shape, float]


def _table(items: Iterable[tuple[Any, Row]]) -> dict[Any, list[Grid]]:
    """Groups rows by their keys, and compresses them."""
    rows: dict[Any, list[Row]] = {}
    for key, row in items:
        rows.setdefault(key, []).append(row)
    return {key: compress(rows.pop(key)) for key in sorted(rows, key=repr)}


def _rows(table: Mapping[Any, list[Grid]]) -> Iterator[tuple[Any, Row]]:
    for key, grids in table.items():
        for grid in grids:
            for row in grid.rows():
                yield key, row


def _described(items: Mapping[str, Any]) -> Iterator[tuple[Any, Row]]:
    for name, what in items.items():
        pieces, numbers = split(name)
        yield (pieces, *what), numbers


def _index_of(offset: int, shape: Shape, strides: Shape) -> Shape:
    """Returns the index of the element at an offset of memory without holes."""
    index = [0] * len(shape)
    for d in sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1)):
        if shape[d] > 1:
            index[d], offset = divmod(offset, strides[d])
    return tuple(index)


class Recording:
    """Where a loader puts each element: immutable data, from waybill.torch.record() or from_json().

    Recordings compare equal if they say the same. Any number of threads may read one.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        targets: Mapping[str, Target],
        routes: Iterable[Route],
        fills: Iterable[Fill],
    ) -> None:
        self._tensors = _table(_described(tensors))
        self._targets = _table(_described(targets))
        self._routes: dict[_RouteKey, list[Grid]] = _table(map(_route_row, routes))
        self._fills: dict[_FillKey, list[Grid]] = _table(map(_fill_row, fills))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recording):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def patterns(self) -> int:
        """How many routes there are that differ in more than numbers: some tens for a model of any size."""
        return len(self._routes)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that the loader was given, by name."""
        return {join(key[0], row): Tensor(*key[1:]) for key, row in _rows(self._tensors)}

    def targets(self) -> dict[str, Target]:
        """Returns what the loader fills, by name."""
        return {join(key[0], row): Target(*key[1:]) for key, row in _rows(self._targets)}

    def routes(self) -> Iterator[Route]:
        """Yields every copy. No two set the same element."""
        for (target, tensor, shape, to, of), row in _rows(self._routes):
            n = len(target) - 1
            yield Route(
                join(target, row[:n]),
                View(row[-2], shape, to),
                join(tensor, row[n:-2]),
                View(row[-1], shape, of),
            )

    def fills(self) -> Iterator[Fill]:
        """Yields every constant that is set."""
        for (target, shape, strides, value), row in _rows(self._fills):
            yield Fill(join(target, row[:-1]), View(row[-1], shape, strides), value)

    def unread(self) -> list[str]:
        """Returns the names of tensors that no target needs: of other ranks, or that nobody loads."""
        read = {route.tensor for route in self.routes()}
        return [name for name in self.tensors() if name not in read]

    def unfilled(self) -> dict[str, int]:
        """Returns how many elements nothing fills, for each target that has any."""
        left = {name: prod(target.shape) for name, target in self.targets().items()}
        for route in self.routes():
            left[route.target] -= size(route.to)
        for fill in self.fills():
            left[fill.target] -= size(fill.to)
        return {name: count for name, count in left.items() if count}

    def check_targets(self, tensors: Mapping[str, Any]) -> None:
        """Checks that torch tensors are like the targets, by name; there may be others.

        Raises InvalidArgument, and names the first target that is missing or has another shape, strides or dtype.
        """
        for name, target in self.targets().items():
            tensor = tensors.get(name)
            if tensor is None:
                raise InvalidArgument(f'"{name}" was recorded, and is missing now')
            dtype = NAMES[dtype_number(tensor.dtype)]
            now = Target(tuple(tensor.shape), tuple(tensor.stride()), dtype)
            if now != target:
                raise InvalidArgument(
                    f'"{name}" was recorded with shape {target.shape}, strides {target.strides} and dtype '
                    f"{target.dtype}; now it has shape {now.shape}, strides {now.strides} and dtype {now.dtype}: "
                    "record before the engine repacks its weights, or skip this one"
                )

    def parts(self) -> dict[str, list[AnyPart]]:
        """Returns the parts of each target that has any, for Worker.add(parts=...).

        Targets that the loader sets to constants only are left out: they hold them since the engine's own load.

        Raises InvalidArgument, and names the target, if a part of it is set to another constant than 0, or if its
        elements are so scattered over a tensor that it has more than 65536 parts.
        """
        tensors, targets = self.tensors(), self.targets()
        parts: dict[str, list[AnyPart]] = {}
        for route in self.routes():
            target, tensor = targets[route.target], tensors[route.tensor]
            its = parts.setdefault(route.target, [])
            try:
                cut = _ranges(route.of, tensor.shape, route.to.strides)
            except ValueError as error:
                raise InvalidArgument(f'"{route.target}" from "{route.tensor}": {error}') from None
            for box, offset, strides in cut:
                at = _index_of(route.to.offset + offset, target.shape, target.strides)
                its.append(
                    Part(route.tensor, tensor.shape, box, at, strides=strides, dtype=tensor.dtype)
                )
        for fill in self.fills():
            if fill.target not in parts:
                continue
            if fill.value != 0:
                raise InvalidArgument(
                    f'"{fill.target}": the loader sets {size(fill.to)} of its elements to {fill.value}; only 0 '
                    "can be set beside what is published"
                )
            target = targets[fill.target]
            at = _index_of(fill.to.offset, target.shape, target.strides)
            parts[fill.target].append(Padding(fill.to.shape, at, strides=fill.to.strides))
        return parts

    def manifest(self) -> Manifest:
        """Returns the manifest of a worker that has added the targets with their parts.

        All targets lie in one region. `waybill plan` and `waybill simulate` read the bytes of its encode() from a file.

        Raises InvalidArgument as parts() does.
        """
        holdings = Holdings()
        targets = self.targets()
        for name, parts in self.parts().items():
            shape, strides, dtype = targets[name]
            memory = Memory(0, shape, strides, dtype_number(dtype), owner=None)
            holdings.add(name, memory, parts)
        return Manifest(holdings.build_for_allocation())

    def to_json(self) -> str:
        """Returns the recording as JSON, as this module's documentation describes it."""
        import json

        return json.dumps(
            {
                "waybill_recording": FORMAT,
                "tensors": _entries(self._tensors, ("name", "shape", "dtype")),
                "targets": _entries(self._targets, ("name", "shape", "strides", "dtype")),
                "routes": _entries(
                    self._routes, ("target", "tensor", "shape", "target_strides", "tensor_strides")
                ),
                "fills": _entries(self._fills, ("target", "shape", "target_strides", "value")),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Recording:
        """Makes a recording from the text of to_json().

        Raises InvalidArgument if the text is not a recording, or one of another version of the format.
        """
        import json

        try:
            said = json.loads(text)
            version = said["waybill_recording"]
            if version != FORMAT:
                raise InvalidArgument(
                    f"the recording has version {version} of the format; this release reads {FORMAT}: record anew"
                )
            recording = cls.__new__(cls)
            recording._tensors = _read(said["tensors"], ("name", "shape", "dtype"))
            recording._targets = _read(said["targets"], ("name", "shape", "strides", "dtype"))
            recording._routes = _read(
                said["routes"], ("target", "tensor", "shape", "target_strides", "tensor_strides")
            )
            recording._fills = _read(said["fills"], ("target", "shape", "target_strides", "value"))
        except (AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the text is not a recording: {error!r}") from None
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"the text is not a recording: {error}") from None
        return recording


def _route_row(route: Route) -> tuple[_RouteKey, Row]:
    to, of = pair(route.to, route.of)
    target, target_numbers = split(route.target)
    tensor, tensor_numbers = split(route.tensor)
    key = (target, tensor, to.shape, to.strides, of.strides)
    return key, (*target_numbers, *tensor_numbers, to.offset, of.offset)


def _fill_row(fill: Fill) -> tuple[_FillKey, Row]:
    to, _ = pair(fill.to, fill.to)
    target, numbers = split(fill.target)
    return (target, to.shape, to.strides, fill.value), (*numbers, to.offset)


# Ranges of a tensor, an offset in the target, strides there.
_Cut = tuple[tuple[tuple[int, int], ...], int, Shape]


@lru_cache(maxsize=1024)
def _ranges(of: View, shape: Shape, to_strides: Shape) -> list[_Cut]:
    """Cuts a view of a tensor into boxes without steps."""
    cut: list[_Cut] = []
    for box, to in boxes(of, shape, View(0, of.shape, to_strides)):
        # An index of each dimension with steps is a box of its own.
        stepped = [s.extent if s.step > 1 and s.extent > 1 else 1 for s in box]
        if len(cut) + prod(stepped) > MOST_BOXES:
            raise ValueError(f"its elements are in more than {MOST_BOXES} boxes of the tensor")
        for index in product(*map(range, stepped)):
            ranges = tuple(
                (s.begin + i * s.step, s.begin + i * s.step + (1 if n > 1 else s.extent))
                for s, i, n in zip(box, index, stepped)
            )
            offset = to.offset + sum(i * stride for i, stride in zip(index, to.strides))
            cut.append((ranges, offset, to.strides))
    return cut


# Numbers that JSON does not have.
_NOT_FINITE = {float("inf"): "inf", float("-inf"): "-inf"}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else _NOT_FINITE.get(value, value)
    return value


def _entries(table: Mapping[Any, list[Grid]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            **{name: _to_json_value(value) for name, value in zip(names, key)},
            "grids": [[grid.first, *grid.loops] for grid in grids],
        }
        for key, grids in table.items()
    ]


def _from_json_value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return float(value) if name == "value" else value


def _read(entries: Any, names: tuple[str, ...]) -> dict[Any, list[Grid]]:
    table: dict[Any, list[Grid]] = {}
    for entry in entries:
        key = tuple(_from_json_value(name, entry[name]) for name in names)
        table[key] = [
            Grid(tuple(first), tuple((count, tuple(step)) for count, step in loops))
            for first, *loops in entry["grids"]
        ]
    return table
