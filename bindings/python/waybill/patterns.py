# SPDX-License-Identifier: Apache-2.0
"""Compresses rows of numbers that go in steps, and names that differ in numbers only.

A model has a hundred thousand tensors, but its layers and experts are alike: their names differ in numbers, and these
numbers, and the places where the tensors lie, go in steps. A `Grid` holds such rows as nested loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

Row = tuple[int, ...]
# The text before, between and after the numbers of a name.
Pieces = tuple[str, ...]

# A number with leading zeros stays text.
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?![0-9])")


def split(name: str) -> tuple[Pieces, Row]:
    """Returns the text around the numbers of a name, and the numbers.

    >>> split("layers.3.experts.17.w1")
    (('layers.', '.experts.', '.w', ''), (3, 17, 1))
    """
    parts = _NUMBER.split(name)
    return tuple(parts[::2]), tuple(map(int, parts[1::2]))


def join(pieces: Pieces, numbers: Iterable[int]) -> str:
    """Returns the name that split() took apart."""
    return pieces[0] + "".join(f"{n}{piece}" for n, piece in zip(numbers, pieces[1:]))


class Grid(NamedTuple):
    """The rows first + sum(i[k] * step of loop k), for each index i of the loops; the last loop is the fastest."""

    first: Row
    loops: tuple[tuple[int, Row], ...]  # How many times, and the step of the row.

    def rows(self) -> Iterator[Row]:
        """Yields the rows.

        >>> list(Grid((0, 5), ((2, (1, 0)), (2, (0, 10)))).rows())
        [(0, 5), (0, 15), (1, 5), (1, 15)]
        """
        for index in product(*(range(count) for count, _ in self.loops)):
            row = self.first
            for i, (_, step) in zip(index, self.loops):
                if i:
                    row = tuple(a + i * b for a, b in zip(row, step))
            yield row


def _step(a: Row, b: Row) -> Row:
    return tuple(y - x for x, y in zip(a, b))


def _loop(grids: list[Grid]) -> list[Grid]:
    """Turns neighbours whose first rows go in equal steps into one grid each, with one more loop."""
    looped = []
    i = 0
    while i < len(grids):
        first, loops = grids[i]
        count = 1
        step: Row = ()
        while i + count < len(grids) and grids[i + count].loops == loops:
            its_step = _step(grids[i + count - 1].first, grids[i + count].first)
            if count == 1:
                step = its_step
            elif its_step != step:
                break
            count += 1
        looped.append(Grid(first, ((count, step), *loops) if count > 1 else loops))
        i += count
    return looped


def compress(rows: Iterable[Row]) -> list[Grid]:
    """Returns grids with these rows, which have equal lengths. Equal rows give equal grids, in any order.

    >>> compress([(1, 4), (0, 4), (2, 4)])
    [Grid(first=(0, 4), loops=((3, (1, 0)),))]
    """
    grids = [Grid(row, ()) for row in sorted(rows)]
    while True:
        looped = _loop(grids)
        if len(looped) == len(grids):
            return grids
        grids = looped
