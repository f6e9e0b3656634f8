# SPDX-License-Identifier: Apache-2.0
"""Names and rows come back as they were."""

import random

import pytest

from waybill.patterns import compress, join, split

NAMES = ["", "weight", "layers.0.w13_weight", "7", "a#.b", "layers.007.x", "x.12345678901234567890"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back(name):
    assert join(*split(name)) == name


def test_leading_zeros_are_text():
    assert split("a.007.b.0") == (("a.007.b.", ""), (0,))


@pytest.mark.parametrize("seed", range(100))
def test_rows_come_back_sorted(seed):
    rng = random.Random(seed)
    width = rng.randint(1, 3)
    rows = [tuple(rng.randrange(4) for _ in range(width)) for _ in range(rng.randrange(40))]
    assert [row for grid in compress(rows) for row in grid.rows()] == sorted(rows)


def test_layers_and_experts_are_one_grid():
    rows = [(layer, 13, layer, e, e * 4096, 64) for layer in range(1, 61) for e in range(384)]
    random.Random(1).shuffle(rows)
    (grid,) = compress(rows)
    assert grid.loops == ((60, (1, 0, 1, 0, 0, 0)), (384, (0, 0, 0, 1, 4096, 0)))
