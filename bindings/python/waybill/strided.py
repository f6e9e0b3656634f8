# SPDX-License-Identifier: Apache-2.0
"""Strided views of memory, and the boxes of a tensor that they select. Offsets and strides are in elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from waybill.memory import dense_strides

Shape = tuple[int, ...]

# One copy may become this many boxes. More means that the copy does not follow the tensor's dimensions.
MOST_BOXES = 1 << 16


class View(NamedTuple):
    """The elements at offset + sum(index[d] * strides[d]), for each index within `shape`."""

    offset: int
    shape: Shape
    strides: Shape

    def span(self) -> tuple[int, int]:
        """Returns the half-open range of offsets that the elements lie in.

        >>> View(5, (2, 3), (10, 1)).span()
        (5, 18)
        """
        reach = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        return self.offset, self.offset + reach + 1

    def offsets(self) -> Iterator[int]:
        """Yields the offset of each element, the last dimension fastest."""
        for index in product(*map(range, self.shape)):
            yield self.offset + sum(i * stride for i, stride in zip(index, self.strides))


class Steps(NamedTuple):
    """Indices of one dimension: begin, begin + step, ..., `extent` of them."""

    begin: int
    extent: int
    step: int


# A box that may leave out indices: the steps of each dimension.
SteppedBox = tuple[Steps, ...]


def pair(first: View, second: View) -> tuple[View, View]:
    """Returns two views of equal shapes with the fewest dimensions that select the same pairs of elements.

    >>> pair(View(0, (4, 1, 8), (8, 8, 1)), View(100, (4, 1, 8), (8, 1, 1)))
    (View(offset=0, shape=(32,), strides=(1,)), View(offset=100, shape=(32,), strides=(1,)))
    """
    dimensions: list[tuple[int, int, int]] = []
    for n, a, b in zip(first.shape, first.strides, second.strides):
        if n == 1:
            continue
        if dimensions:
            outer, outer_a, outer_b = dimensions[-1]
            if outer_a == n * a and outer_b == n * b:
                dimensions[-1] = (outer * n, a, b)
                continue
        dimensions.append((n, a, b))
    shape = tuple(d[0] for d in dimensions)
    return (
        View(first.offset, shape, tuple(d[1] for d in dimensions)),
        View(second.offset, shape, tuple(d[2] for d in dimensions)),
    )


def boxes(view: View, home: Shape, other: View) -> Iterator[tuple[SteppedBox, View]]:
    """Cuts a view of a dense tensor into stepped boxes of that tensor.

    Yields each box with the same elements of `other`, a view of the same shape. The yielded view has one dimension
    for each of `home`, the tensor's shape.

    Raises ValueError if there would be more than MOST_BOXES.
    """
    if 0 in view.shape:
        return
    dimensions = [(n, a, b) for n, a, b in zip(view.shape, view.strides, other.strides) if n != 1]
    count = 0
    for box in _boxes(dimensions, view.offset, other.offset, home, dense_strides(home)):
        count += 1
        if count > MOST_BOXES:
            raise ValueError(
                f"a view of shape {view.shape} with strides {view.strides} is more than {MOST_BOXES} boxes of a "
                f"tensor of shape {home}"
            )
        yield box


def _boxes(
    dimensions: list[tuple[int, int, int]], offset: int, other: int, home: Shape, strides: Shape
) -> Iterator[tuple[SteppedBox, View]]:
    index = []
    rest = offset
    for stride in strides:
        index.append(rest // stride)
        rest %= stride
    matched: dict[int, tuple[int, int, int]] = {}
    for i, (n, a, b) in enumerate(dimensions):
        others = dimensions[:i] + dimensions[i + 1 :]
        d = next(
            (d for d, s in enumerate(strides) if a and a % s == 0 and a // s < home[d]),
            None,
        )
        if d is None:
            cut = i  # It repeats elements, or crosses rows with each step.
        elif d in matched:
            # Two dimensions run along one of the tensor's: the shorter one is taken apart.
            before = next(j for j in range(i) if dimensions[j] == matched[d])
            cut = i if n <= dimensions[before][0] else before
        else:
            step = a // strides[d]
            room = -(-(home[d] - index[d]) // step)
            if n <= room:
                matched[d] = (n, a, b)
                continue
            # It runs over the end of a row: whole rows become a dimension, what is before and after them boxes.
            even = home[d] % step == 0
            row = home[d] // step if even and index[d] < step else 0
            if row and n % row == 0:
                split = [(n // row, a * row, b * row), (row, a, b)]
                yield from _boxes(others + split, offset, other, home, strides)
                return
            first = n // row * row if row else room if even else n // 2
            yield from _boxes([*others, (first, a, b)], offset, other, home, strides)
            others.append((n - first, a, b))
            yield from _boxes(others, offset + first * a, other + first * b, home, strides)
            return
        n, a, b = dimensions[cut]
        others = dimensions[:cut] + dimensions[cut + 1 :]
        for k in range(n):
            yield from _boxes(others, offset + k * a, other + k * b, home, strides)
        return
    box = []
    other_strides = []
    for d, begin in enumerate(index):
        n, a, b = matched.get(d, (1, strides[d], 1))
        box.append(Steps(begin, n, a // strides[d]))
        other_strides.append(b)
    yield tuple(box), View(other, tuple(steps.extent for steps in box), tuple(other_strides))


def _common(a: Steps, b: Steps) -> Steps | None:
    """Returns the indices that both have, or None."""
    end = min(a.begin + (a.extent - 1) * a.step, b.begin + (b.extent - 1) * b.step) + 1
    step = a.step * b.step // gcd(a.step, b.step)
    begin = a.begin + max(0, -(-(b.begin - a.begin) // a.step)) * a.step
    for _ in range(step // a.step):
        if begin >= end:
            return None
        if (begin - b.begin) % b.step == 0:
            break
        begin += a.step
    else:
        return None
    return Steps(begin, (end - 1 - begin) // step + 1, step)


def intersection(a: SteppedBox, b: SteppedBox) -> SteppedBox | None:
    """Returns the elements that both boxes of one tensor have, or None.

    >>> intersection((Steps(0, 5, 2),), (Steps(3, 4, 1),))
    (Steps(begin=4, extent=2, step=2),)
    """
    both = []
    for mine, theirs in zip(a, b):
        steps = _common(mine, theirs)
        if steps is None:
            return None
        both.append(steps)
    return tuple(both)


def difference(box: SteppedBox, part: SteppedBox) -> Iterator[SteppedBox]:
    """Yields boxes of the elements of `box` that are not in `part`, which lies within it."""
    done: list[Steps] = []
    for d, (all_, some) in enumerate(zip(box, part)):
        # The part in counts of the box's own steps.
        first = (some.begin - all_.begin) // all_.step
        stride = some.step // all_.step if some.extent > 1 else 1
        last = first + (some.extent - 1) * stride
        outside = [Steps(all_.begin, first, all_.step)]
        outside += [
            Steps(some.begin + k * all_.step, some.extent - 1, stride * all_.step)
            for k in range(1, stride)
        ]
        after = all_.begin + (last + 1) * all_.step
        outside.append(Steps(after, all_.extent - last - 1, all_.step))
        for steps in outside:
            if steps.extent > 0:
                yield (*done, steps, *box[d + 1 :])
        done.append(some)


def within(view: View, box: SteppedBox, part: SteppedBox) -> View:
    """Returns the elements of `view`, which has those of `box`, that belong to `part` of the box."""
    offset = view.offset
    strides = []
    for all_, some, stride in zip(box, part, view.strides):
        offset += (some.begin - all_.begin) // all_.step * stride
        strides.append(some.step // all_.step * stride if some.extent > 1 else stride)
    return View(offset, tuple(steps.extent for steps in part), tuple(strides))


def disjoint(views: list[View]) -> bool:
    """Returns True if the spans of the views do not overlap. Views that interleave count as overlapping."""
    end = 0
    for begin, its_end in sorted(view.span() for view in views):
        if begin < end:
            return False
        end = its_end
    return True


def size(view: View) -> int:
    """Returns the number of elements of a view."""
    return prod(view.shape)
