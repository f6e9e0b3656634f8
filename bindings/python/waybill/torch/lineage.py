# SPDX-License-Identifier: Apache-2.0
"""What was written to each buffer, in order, and where the elements of a target came from in the end.

Each tensor that the tracer knows is a view of a `Buffer`: a checkpoint tensor, a target, or memory of the loader's own.
Every copy is one `Write` to a buffer, whose elements come from a constant, from nowhere that is known, or from a buffer
as its first `version` writes had left it. A staging buffer that is used twice is followed correctly for that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple, Union

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.memory import dense_strides
from waybill.strided import (
    Shape,
    SteppedBox,
    View,
    boxes,
    difference,
    disjoint,
    intersection,
    size,
    within,
)

SOURCE, TARGET, BETWEEN = "source", "target", "between"


class Buffer:
    """A dense piece of a storage; `begin` is its offset there, in elements. Views count from `begin`."""

    __slots__ = ("begin", "dtype", "kind", "name", "shape", "writes")

    def __init__(self, kind: str, name: str, shape: Shape, dtype: Any, begin: int = 0) -> None:
        self.kind = kind
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.begin = begin
        self.writes: list[Write] = []

    @property
    def whole(self) -> View:
        """All elements, in their order."""
        return View(0, self.shape, dense_strides(self.shape))


class Constant(NamedTuple):
    """Elements of one value."""

    value: float


class Unknown(NamedTuple):
    """Elements that are no copies of others, and why."""

    reason: str


class Elsewhere(NamedTuple):
    """Elements that another rank has, and that a collective operation would bring."""


class Conversion(NamedTuple):
    """A step on the way of an element: torch casts it, or sees its bits as another dtype of the same size."""

    cast: bool
    dtype: Any


Origin = Union[Buffer, Constant, Unknown, Elsewhere]


class Write(NamedTuple):
    """Elements `of` an origin become those at `to`; `of` is a view of the origin if that is a buffer."""

    to: View
    origin: Origin
    of: View
    conversions: tuple[Conversion, ...]
    version: int


def holds_exactly(narrow: Any, wide: Any) -> bool:
    """Returns whether each value of dtype `narrow` is a value of dtype `wide`."""
    if narrow == wide or narrow == torch.bool:
        return True
    if wide == torch.bool or narrow.is_complex or wide.is_complex:
        return False
    if not narrow.is_floating_point:
        a = torch.iinfo(narrow)
        if wide.is_floating_point:
            return bool(max(-a.min, a.max + 1) <= 1 / torch.finfo(wide).eps)
        b = torch.iinfo(wide)
        return bool(b.min <= a.min and a.max <= b.max)
    if not wide.is_floating_point:
        return False
    a, b = torch.finfo(narrow), torch.finfo(wide)
    return bool(a.eps >= b.eps and a.max <= b.max and a.tiny * a.eps >= b.tiny * b.eps)


def unequal_to_one_cast(conversions: tuple[Conversion, ...], first: Any, last: Any) -> str | None:
    """Says why the conversions of an element from dtype `first` to `last` differ from one cast, or returns None."""
    values, seen = (
        first,
        first,
    )  # The dtype whose values they are, and the one that the bits are seen as.
    for i, (cast, dtype) in enumerate(conversions):
        if not cast:
            seen = dtype
        elif dtype != seen:
            if values != seen:
                return f"bytes of {values} are taken for {seen} and cast to {dtype}"
            if all(dtype == later.dtype for later in conversions[i:]):
                return None if dtype == last else f"bytes of {dtype} are taken for {last}"
            if not holds_exactly(values, dtype):
                return f"a cast from {values} by way of {dtype} to {last} rounds twice"
            seen = dtype
            values = dtype
    return None if values == seen == last else f"bytes of {values} are taken for {last}"


class Findings:
    """Takes what is found out about a target."""

    def __init__(
        self,
        route: Callable[[View, Buffer, View], None],
        fill: Callable[[View, float], None],
        refusal: Callable[[str], None],
    ) -> None:
        self.route = route
        self.fill = fill
        self.refusal = refusal


def follow(target: Buffer, findings: Findings) -> None:
    """Finds out where each element of a target came from. What nothing was written to is not mentioned."""
    writes = target.writes
    try:
        if disjoint([write.to for write in writes]):
            for write in writes:
                _resolve(target, write.to, write, write.of, (), findings)
        else:
            _follow_buffer(target, target.whole, target, target.whole, (), len(writes), findings)
    except ValueError as error:
        findings.refusal(str(error))


def _resolve(
    target: Buffer,
    to: View,
    write: Write,
    of: View,
    later: tuple[Conversion, ...],
    findings: Findings,
) -> None:
    """Follows elements `of` a write's origin, which end at `to` after the `later` conversions."""
    origin = write.origin
    conversions = write.conversions + later
    if isinstance(origin, Unknown):
        findings.refusal(origin.reason)
    elif isinstance(origin, Elsewhere):
        pass  # The other rank's recording has them.
    elif isinstance(origin, Constant):
        if origin.value != 0 and not all(conversion.cast for conversion in conversions):
            findings.refusal(f"the bytes of a constant {origin.value} are taken for another dtype")
        else:
            findings.fill(to, origin.value)
    else:
        _follow_buffer(target, to, origin, of, conversions, write.version, findings)


def _follow_buffer(
    target: Buffer,
    to: View,
    buffer: Buffer,
    of: View,
    later: tuple[Conversion, ...],
    version: int,
    findings: Findings,
) -> None:
    """Follows elements `of` a buffer as its first `version` writes had left it, the newest write first."""
    if buffer.kind == SOURCE and not version:
        _found(target, to, buffer, of, later, findings)
        return
    todo: list[tuple[SteppedBox, View]] = list(boxes(of, buffer.shape, to))
    for i in reversed(range(version)):
        if not todo:
            return
        write = buffer.writes[i]
        for written, view in boxes(write.to, buffer.shape, write.of):
            todo = list(_without(todo, written, view, target, write, later, findings))
    for box, view in todo:
        if buffer.kind == SOURCE:
            strides = dense_strides(buffer.shape)
            offset = sum(steps.begin * stride for steps, stride in zip(box, strides))
            stepped = tuple(steps.step * stride for steps, stride in zip(box, strides))
            its = View(offset, tuple(steps.extent for steps in box), stepped)
            _found(target, view, buffer, its, later, findings)
        elif buffer is not target:
            findings.refusal(
                f"elements of {_named(buffer)} are read that the loader has not copied from anywhere"
            )


def _without(
    todo: list[tuple[SteppedBox, View]],
    written: SteppedBox,
    view: View,
    target: Buffer,
    write: Write,
    later: tuple[Conversion, ...],
    findings: Findings,
) -> Iterator[tuple[SteppedBox, View]]:
    """Follows what one box of a write has set of each box, and yields what is left."""
    for box, to in todo:
        both = intersection(box, written)
        if both is None:
            yield box, to
            continue
        of = within(view, written, both)
        _resolve(target, within(to, box, both), write, of, later, findings)
        for rest in difference(box, both):
            yield rest, within(to, box, rest)


def _found(
    target: Buffer,
    to: View,
    source: Buffer,
    of: View,
    conversions: tuple[Conversion, ...],
    findings: Findings,
) -> None:
    wrong = unequal_to_one_cast(conversions, source.dtype, target.dtype) if conversions else None
    if wrong is not None:
        findings.refusal(f'{wrong}, of "{source.name}"')
    elif size(to):
        findings.route(to, source, of)


def _named(buffer: Buffer) -> str:
    return f'"{buffer.name}"' if buffer.name else f"a tensor of shape {buffer.shape}"


class Storage:
    """The buffers that share one storage of torch, in their order, without gaps. It keeps the storage alive."""

    def __init__(self, storage: Any, dtype: Any, buffers: list[Buffer]) -> None:
        self.kept = storage
        self.dtype = dtype
        self.buffers = buffers

    def pieces(self, view: View, other: View) -> Iterator[tuple[Buffer, View, View]]:
        """Yields each buffer's share of a view of the storage, and the same elements of `other`."""
        if len(self.buffers) == 1:
            yield self.buffers[0], view, other
            return
        begin, end = view.span()
        for buffer in self.buffers:
            last = buffer.begin + prod(buffer.shape)
            if begin < last and buffer.begin < end:
                if buffer.begin <= begin and end <= last:
                    yield buffer, view._replace(offset=begin - buffer.begin), other
                else:
                    for half, its in _halves(view, other, last):
                        yield from self.pieces(half, its)
                return


def _halves(view: View, other: View, boundary: int) -> Iterator[tuple[View, View]]:
    """Cuts two views along the dimension of the largest stride, before a boundary between buffers."""
    d = max(range(len(view.shape)), key=lambda d: (view.shape[d] > 1) * view.strides[d])
    n, stride = view.shape[d], view.strides[d]
    first = min(max(1, (boundary - view.offset) // stride), n - 1)
    for begin, count in ((0, first), (first, n - first)):
        yield tuple(  # type: ignore[misc]
            View(
                v.offset + begin * v.strides[d],
                (*v.shape[:d], count, *v.shape[d + 1 :]),
                v.strides,
            )
            for v in (view, other)
        )
