# SPDX-License-Identifier: Apache-2.0
"""Collects what a rank adds, and makes the manifest and the regions of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from waybill import _waybill
from waybill.dtypes import dtype_number
from waybill.errors import FailedPrecondition, InvalidArgument, NotFound
from waybill.memory import DEVICE, HOST, Memory, dense_strides, memory_of
from waybill.names import nearest, quoted
from waybill.parts import AnyPart, Padding, Part

CONTENTS = {"plain": 0, "quantised": 1, "scales": 2}

# How tensors in memory that Waybill allocates are aligned, in bytes.
_ALIGNMENT = 64


class Placed(NamedTuple):
    """A part, and where its elements lie in the buffer: an offset and strides, in elements."""

    part: AnyPart
    offset: int
    strides: tuple[int, ...]


class Holding:
    """One array of this rank: where it is, and what lies in it."""

    def __init__(self, name: str, memory: Memory, parts: Sequence[Placed]) -> None:
        self.name = name
        self.memory = memory
        self.parts = parts
        self.region = 0  # Which region it is in, and where: set by build().
        self.offset_bytes = 0


class Regions:
    """A range of memory that holdings share."""

    def __init__(self, begin: int, end: int, first: Holding) -> None:
        self.begin, self.end = begin, end
        self.holdings = [first]

    @property
    def name(self) -> str:
        """Returns the name of the first holding, and how many more there are."""
        more = len(self.holdings) - 1
        return self.holdings[0].name + (f" and {more} more" if more else "")


def _key(name: str, memory: Memory, parts: Sequence[Placed]) -> tuple[object, ...] | None:
    """Returns what is equal for tensors that are one under several names, as a tied embedding and head are."""
    if memory.owner is None or memory.empty or len(parts) != 1:
        return None
    part, offset, strides = parts[0]
    if not isinstance(part, Part) or part.tensor != name:
        return None
    what = (part.shape, part.box, str(part.dtype), part.content, part.quantisation)
    return memory.address, memory.shape, memory.strides, memory.dtype, offset, strides, *what


def place(name: str, memory: Memory, parts: Iterable[AnyPart]) -> list[Placed]:
    """Returns each part with the place of its elements in the buffer."""
    shape = memory.shape
    end = 1 + sum((n - 1) * stride for n, stride in zip(shape, memory.strides))
    placed = []
    next_row = 0
    for part in parts:
        extents = part.extents
        at = (next_row, *(0 for _ in shape[1:]))[: len(shape)] if part.at is None else part.at
        missing = len(shape) - len(extents)
        strides = memory.strides[max(missing, 0) :] if part.strides is None else part.strides
        if len(at) != len(shape) or len(strides) != len(extents):
            raise InvalidArgument(
                f'"{name}": a part of {len(extents)} dimensions in a buffer of shape {shape}'
            )
        if part.at is None and (missing or part.strides is not None):
            raise InvalidArgument(
                f'"{name}": a part of {len(extents)} dimensions in a buffer of shape {shape} needs `at`'
            )
        # A box with strides of its own may lie across the buffer's dimensions, but not beyond the buffer.
        lies = (1,) * missing + extents if part.strides is None else (1,) * len(shape)
        offset = sum(a * stride for a, stride in zip(at, memory.strides))
        last = offset + sum((n - 1) * stride for n, stride in zip(extents, strides))
        if any(a < 0 or a + n > room for a, n, room in zip(at, lies, shape)) or (
            part.strides is not None and not offset <= last < end
        ):
            raise InvalidArgument(
                f'"{name}": a part of shape {extents} at {tuple(at)} goes beyond the buffer\'s shape '
                f"{shape}"
            )
        placed.append(Placed(part, offset, strides))
        if shape:
            next_row = at[0] + lies[0]
    return placed


class Holdings:
    """Everything that a rank has added."""

    def __init__(self) -> None:
        self._holdings: dict[str, Holding] = {}
        self._declared: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._aliases: dict[str, str] = {}
        self._by_key: dict[tuple[object, ...], str] = {}
        self._given: tuple[_waybill.Manifest, list[Memory]] | None = None

    def __iter__(self) -> Any:
        return iter(self._holdings.values())

    def __getitem__(self, name: str) -> Holding:
        holding = self._holdings.get(self._aliases.get(name, name))
        if holding is None:
            near = nearest(name, self._holdings)
            raise NotFound(f'"{name}" was not added{f"; {quoted(near)} was" if near else ""}')
        return holding

    def names(self) -> list[str]:
        """Returns all names."""
        return [*self._holdings, *self._aliases]

    def give_back(self) -> None:
        """Lets go of all memory."""
        for holding in self._holdings.values():
            holding.memory.owner = None
        if self._given is not None:
            for memory in self._given[1]:
                memory.owner = None

    def settle(self, manifest: _waybill.Manifest, buffers: Sequence[Any]) -> None:
        """Holds exactly what a manifest says, in these buffers: one for each of its regions, or none."""
        if self._holdings or self._given is not None:
            raise FailedPrecondition("add_manifest: this rank has added something before")
        memories = [memory_of(buffer) for buffer in buffers]
        for index, memory in enumerate(memories):
            if not memory.dense:
                raise InvalidArgument(f"add_manifest: buffer {index} is not contiguous")
        self._given = (manifest, memories)

    def on_device(self) -> Memory | None:
        """Returns the first memory that is on a device, or None."""
        memories = [holding.memory for holding in self] if self._given is None else self._given[1]
        return next((memory for memory in memories if memory.kind == DEVICE), None)

    @property
    def lent(self) -> bool:
        """Whether any holding lies in memory of the caller."""
        if self._given is not None:
            return bool(self._given[1])
        return any(holding.memory.owner is not None for holding in self)

    def owner(self, index: int) -> object:
        """Returns the owner of a region of the manifest, or None if Waybill allocated it."""
        memories = self._given[1] if self._given is not None else []
        return memories[index].owner if index < len(memories) else None

    def _build_given(
        self, context: _waybill.Context, manifest: _waybill.Manifest, memories: Sequence[Memory]
    ) -> tuple[_waybill.Manifest, list[_waybill.Region]]:
        regions = []
        for index, memory in enumerate(memories):
            begin, end = (0, 0) if memory.empty else memory.span()
            name = f"buffer {index}"
            regions.append(
                _waybill.Region(
                    context, begin, end - begin, memory.kind, memory.read_only, name, [memory.owner]
                )
            )
        return manifest, regions

    def declare(self, name: str, dtype: int, shape: Sequence[int]) -> None:
        """Declares a tensor of the job; this rank may hold nothing of it."""
        self._declared.setdefault(name, (dtype, tuple(shape)))

    def add(self, name: str, memory: Memory, parts: Iterable[AnyPart]) -> None:
        """Adds an array and what lies in it. One that was added before gets another name."""
        if name in self._holdings or name in self._aliases:
            raise InvalidArgument(f'"{name}" was added before')
        holding = Holding(name, memory, place(name, memory, parts))
        key = _key(name, memory, holding.parts)
        first = name if key is None else self._by_key.setdefault(key, name)
        if first != name:
            self._aliases[name] = first
            self._declared.pop(name, None)
            return
        for part, _, _ in holding.parts:
            if isinstance(part, Part):
                dtype = memory.dtype if part.dtype is None else dtype_number(part.dtype)
                self.declare(part.tensor, dtype, part.shape)
        self._holdings[name] = holding

    def build_in_memory(
        self, context: _waybill.Context, *, to_write: bool
    ) -> tuple[_waybill.Manifest, list[_waybill.Region]]:
        """Returns the manifest, and regions over the memory that was added."""
        if self._given is not None:
            return self._build_given(context, *self._given)
        manifest = _waybill.Manifest()
        regions = []
        for index, region in enumerate(self._merged(to_write=to_write)):
            first = region.holdings[0].memory
            size = region.end - region.begin
            manifest.add_region(region.name, size)
            read_only = any(h.memory.read_only for h in region.holdings)
            owners = [h.memory.owner for h in region.holdings]
            regions.append(
                _waybill.Region(
                    context, region.begin, size, first.kind, read_only, region.name, owners
                )
            )
            for holding in region.holdings:
                holding.region = index
                holding.offset_bytes = holding.memory.address - region.begin
        self._fill(manifest)
        return manifest, regions

    def build_for_allocation(self) -> _waybill.Manifest:
        """Returns the manifest for memory that Waybill allocates: all of it is one region."""
        if self._given is not None:
            return self._given[0]
        manifest = _waybill.Manifest()
        gaps = []
        offset = 0
        for holding in self._holdings.values():
            start = -(-offset // _ALIGNMENT) * _ALIGNMENT
            if start > offset:
                gaps.append((offset, start - offset))
            holding.offset_bytes = start
            begin, end = (0, 0) if holding.memory.empty else holding.memory.span()
            offset = start + end - begin
        if self._holdings:
            manifest.add_region("weights", offset)
        for begin, size in gaps:
            manifest.add_padding(0, begin, 1, [size], None)
        self._fill(manifest)
        return manifest

    def _merged(self, *, to_write: bool) -> list[Regions]:
        """Merges holdings into regions.

        Memory that is read becomes one region for each storage. A region that is written must not have holes or be
        written twice, so only neighbours are merged.
        """
        held = [
            (holding.memory.kind, *holding.memory.span(), number, holding)
            for number, holding in enumerate(self._holdings.values())
            if not holding.memory.empty
        ]
        held.sort()
        regions: list[Regions] = []
        last_storage: int | None = None
        farthest: Holding | None = None  # The one that ends last of those before.
        farthest_end = 0
        for kind, begin, end, _, holding in held:
            if farthest is None or farthest.memory.kind != kind:
                farthest, farthest_end = holding, end
            elif to_write and begin < farthest_end:
                raise InvalidArgument(
                    f'"{farthest.name}" and "{holding.name}" overlap in memory: only tensors that are the same may have '
                    "several names"
                )
            if end > farthest_end:
                farthest, farthest_end = holding, end
            last = regions[-1] if regions else None
            same = last is not None and last_storage == holding.memory.storage
            if last is not None and (
                same and begin == last.end
                if to_write
                else same or (kind == HOST and begin < last.end)
            ):
                last.end = max(last.end, end)
                last.holdings.append(holding)
            else:
                regions.append(Regions(begin, end, holding))
            last_storage = holding.memory.storage
        return regions

    def _fill(self, manifest: _waybill.Manifest) -> None:
        tensors = {
            name: manifest.add_tensor(name, dtype, list(shape))
            for name, (dtype, shape) in self._declared.items()
        }
        for name, of in self._aliases.items():
            manifest.add_alias(name, tensors[of])
        for holding in self._holdings.values():
            if not holding.memory.empty:
                for placed in holding.parts:
                    _add_part(manifest, tensors, holding, placed)


def _add_part(
    manifest: _waybill.Manifest, tensors: dict[str, int], holding: Holding, placed: Placed
) -> None:
    part, first, its_strides = placed
    memory = holding.memory
    size = _waybill.dtype_size(memory.dtype)
    offset = holding.offset_bytes + size * first
    extents = part.extents
    wanted = dense_strides(extents)
    dense = its_strides == wanted or all(
        n == 1 or a == b for n, a, b in zip(extents, its_strides, wanted)
    )
    strides = None if dense else list(its_strides)
    if isinstance(part, Padding):
        manifest.add_padding(holding.region, offset, size, list(extents), strides)
        return
    if 0 in extents:
        return
    if part.content not in CONTENTS:
        raise InvalidArgument(
            f'"{holding.name}": content {part.content!r} is none of {", ".join(CONTENTS)}'
        )
    manifest.add_shard(
        tensors[part.tensor],
        holding.region,
        offset,
        memory.dtype,
        CONTENTS[part.content],
        part.quantisation,
        [begin for begin, _ in part.box],
        [end for _, end in part.box],
        strides,
    )


def allocation(dtype: object, shape: Sequence[int], kind: int = HOST) -> Memory:
    """Returns an array for Waybill to allocate; it has no address."""
    strides = dense_strides(tuple(shape))
    return Memory(0, tuple(shape), strides, dtype_number(dtype), owner=None, kind=kind)
