# SPDX-License-Identifier: Apache-2.0
"""Boxes of views, against every element."""

import random
from itertools import product

import pytest

from waybill.memory import dense_strides
from waybill.strided import (
    Steps,
    View,
    boxes,
    difference,
    disjoint,
    intersection,
    pair,
    within,
)


def random_view(rng, home):
    """A view of a dense tensor made as torch makes them: sliced, stepped, split, transposed, expanded."""
    shape, strides, offset = list(home), list(dense_strides(home)), 0
    for _ in range(rng.randrange(6)):
        d = rng.randrange(len(shape))
        kind = rng.choice(["slice", "split", "swap", "expand", "flatten"])
        if kind == "slice":
            begin = rng.randrange(shape[d])
            step = rng.randint(1, 3)
            offset += begin * strides[d]
            shape[d] = -(-(shape[d] - begin) // step)
            strides[d] *= step
        elif kind == "split":
            factors = [f for f in range(1, shape[d] + 1) if shape[d] % f == 0]
            inner = rng.choice(factors)
            shape[d : d + 1] = [shape[d] // inner, inner]
            strides[d : d + 1] = [strides[d] * inner, strides[d]]
        elif kind == "swap":
            e = rng.randrange(len(shape))
            for values in (shape, strides):
                values[d], values[e] = values[e], values[d]
        elif kind == "expand":
            shape.insert(d, 2)
            strides.insert(d, 0)
        elif d + 1 < len(shape) and strides[d] == shape[d + 1] * strides[d + 1]:
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
            strides[d : d + 2] = [strides[d + 1]]
    return View(offset, tuple(shape), tuple(strides))


def numbers_of(box, home):
    strides = dense_strides(home)
    dimensions = [[s.begin + i * s.step for i in range(s.extent)] for s in box]
    assert all(i < n for values, n in zip(dimensions, home, strict=True) for i in values)
    return [sum(i * s for i, s in zip(x, strides, strict=True)) for x in product(*dimensions)]


def home_of(rng):
    return tuple(rng.randint(1, 7) for _ in range(rng.randint(1, 3)))


@pytest.mark.parametrize("seed", range(300))
def test_boxes_have_each_pair_of_elements_once(seed):
    rng = random.Random(seed)
    home = home_of(rng)
    view = random_view(rng, home)
    other = View(1000, view.shape, dense_strides(view.shape))
    expected = list(zip(view.offsets(), other.offsets(), strict=True))
    found = []
    for box, theirs in boxes(view, home, other):
        found += zip(numbers_of(box, home), theirs.offsets(), strict=True)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("seed", range(300))
def test_fewer_dimensions_select_the_same_pairs(seed):
    rng = random.Random(seed)
    view = random_view(rng, home_of(rng))
    other = View(7, view.shape, dense_strides(view.shape))
    expected = sorted(zip(view.offsets(), other.offsets(), strict=True))
    first, second = pair(view, other)
    assert sorted(zip(first.offsets(), second.offsets(), strict=True)) == expected
    assert len(first.shape) <= len(view.shape)


def random_box(rng, home):
    box = []
    for n in home:
        begin, step = rng.randrange(n), rng.randint(1, 3)
        box.append(Steps(begin, rng.randint(1, -(-(n - begin) // step)), step))
    return tuple(box)


@pytest.mark.parametrize("seed", range(500))
def test_a_box_is_its_common_elements_and_the_others(seed):
    rng = random.Random(seed)
    home = tuple(rng.randint(1, 12) for _ in range(rng.randint(0, 2)))
    a, b = random_box(rng, home), random_box(rng, home)
    mine, theirs = set(numbers_of(a, home)), set(numbers_of(b, home))
    both = intersection(a, b)
    assert (set() if both is None else set(numbers_of(both, home))) == mine & theirs
    if both is None:
        return
    rest = [number for box in difference(a, both) for number in numbers_of(box, home)]
    assert sorted(rest) == sorted(mine - theirs)
    whole = View(0, tuple(s.extent for s in a), tuple(10 * (d + 1) for d in range(len(a))))
    offsets = dict(zip(numbers_of(a, home), whole.offsets(), strict=True))
    chosen = within(whole, a, both).offsets()
    assert list(chosen) == [offsets[number] for number in numbers_of(both, home)]


def test_a_row_that_wraps_becomes_a_head_whole_rows_and_a_tail():
    found = list(boxes(View(3, (14,), (1,)), (4, 5), View(0, (14,), (1,))))
    assert [tuple((s.begin, s.extent) for s in box) for box, _ in found] == [
        ((0, 1), (3, 2)),
        ((1, 2), (0, 5)),
        ((3, 1), (0, 2)),
    ]


def test_steps_are_one_box():
    assert len(list(boxes(View(1, (3, 4), (8, 2)), (3, 8), View(0, (3, 4), (4, 1))))) == 1


def test_too_many_boxes_are_refused():
    view = View(0, (1 << 20,), (0,))
    with pytest.raises(ValueError, match="more than 65536 boxes of a tensor of shape \\(4,\\)"):
        list(boxes(view, (4,), View(0, (1 << 20,), (1,))))


def test_spans_that_touch_are_disjoint():
    assert disjoint([View(8, (4,), (1,)), View(0, (2, 4), (4, 1))])
    assert not disjoint([View(7, (4,), (1,)), View(0, (2, 4), (4, 1))])
