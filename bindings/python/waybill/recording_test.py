# SPDX-License-Identifier: Apache-2.0
"""Recordings as data: the JSON form comes back, and parts select the elements that routes do."""

import json
from itertools import product
from math import prod
from operator import mul, sub

import pytest

import waybill
from waybill.memory import dense_strides
from waybill.recording import Fill, Recording, Route, Target, Tensor
from waybill.strided import View

TENSORS = {
    "layers.0.q": Tensor((6, 4), "BF16"),
    "layers.1.q": Tensor((6, 4), "BF16"),
    "scale": Tensor((), "F32"),
}
TARGETS = {
    "layers.0.w": Target((4, 6), (6, 1), "BF16"),
    "layers.1.w": Target((4, 6), (6, 1), "BF16"),
    "t": Target((2, 3), (1, 2), "F32"),
    "constant": Target((5,), (1,), "F32"),
}
ROUTES = [
    # Transposed, but for the last row.
    *(
        Route(f"layers.{i}.w", View(0, (5, 4), (1, 6)), f"layers.{i}.q", View(0, (5, 4), (4, 1)))
        for i in range(2)
    ),
    Route("t", View(0, (3,), (2,)), "scale", View(0, (3,), (0,))),
]
FILLS = [
    *(Fill(f"layers.{i}.w", View(5, (4,), (6,)), 0.0) for i in range(2)),
    Fill("t", View(1, (3,), (2,)), 0.0),
    Fill("constant", View(0, (5,), (1,)), float("inf")),
]


def made():
    return Recording(TENSORS, TARGETS, ROUTES, FILLS)


def test_json_comes_back():
    recording = made()
    text = recording.to_json()
    json.loads(text, parse_constant=pytest.fail)  # No NaN or Infinity, which JSON does not have.
    again = Recording.from_json(text)
    assert again == recording
    assert again.to_json() == text
    assert (again.tensors(), again.targets()) == (TENSORS, TARGETS)
    assert list(again.fills()) == sorted(FILLS)


def test_layers_are_one_pattern():
    assert made().patterns == 2
    assert len(json.loads(made().to_json())["targets"]) == 3


def test_the_order_of_what_was_recorded_does_not_matter():
    backwards = Recording(
        dict(reversed(TENSORS.items())), dict(reversed(TARGETS.items())), ROUTES[::-1], FILLS[::-1]
    )
    assert backwards.to_json() == made().to_json()


def offsets_of(at, extents, strides, target):
    first = sum(a * s for a, s in zip(at, target.strides, strict=True))
    for index in product(*map(range, extents)):
        yield first + sum(i * s for i, s in zip(index, strides, strict=True))


def test_parts_select_the_elements_of_the_routes():
    recording = made()
    expected, found = set(), set()
    for route in ROUTES:
        expected.update(
            (route.target, to, route.tensor, of)
            for to, of in zip(route.to.offsets(), route.of.offsets(), strict=True)
        )
    padding = {(f.target, to) for f in FILLS if f.target != "constant" for to in f.to.offsets()}
    for name, parts in recording.parts().items():
        for part in parts:
            places = list(offsets_of(part.at, part.extents, part.strides, TARGETS[name]))
            if isinstance(part, waybill.Padding):
                padding -= {(name, place) for place in places}
                continue
            strides = dense_strides(part.shape)
            index = [i for i in product(*(range(*r) for r in part.box))]
            numbers = [sum(a * s for a, s in zip(i, strides, strict=True)) for i in index]
            found.update(
                (name, *pair)
                for pair in zip(places, [part.tensor] * len(places), numbers, strict=True)
            )
    assert found == expected
    assert padding == set()


def test_a_target_of_constants_only_has_no_parts():
    assert "constant" not in made().parts()


def test_a_manifest_holds_each_element_of_the_parts_and_the_rest_is_padding():
    recording = made()
    sizes = {name: 4 if target.dtype == "F32" else 2 for name, target in TARGETS.items()}
    begins, end = {}, 0
    for name in recording.parts():
        begins[name] = -(-end // 64) * 64
        end = begins[name] + prod(TARGETS[name].shape) * sizes[name]
    expected = {
        (begins[r.target] + to * sizes[r.target], r.tensor, of)
        for r in ROUTES
        for to, of in zip(r.to.offsets(), r.of.offsets(), strict=True)
    }
    manifest = recording.manifest()
    said = manifest.describe()
    found, filled = set(), 0
    for shard in said["shards"]:
        tensor, place = said["tensors"][shard["tensor"]], shard["place"]
        size = 4 if shard["dtype"] == "F32" else 2
        dense = dense_strides(tuple(tensor["shape"]))
        for index in product(*map(range, shard["begin"], shard["end"])):
            step = sum(map(mul, map(sub, index, shard["begin"]), place["strides"]))
            found.add(
                (place["offset_bytes"] + step * size, tensor["name"], sum(map(mul, index, dense)))
            )
            filled += size
    assert found == expected
    padding = sum(prod(p["extents"]) * p["element_bytes"] for p in said["padding"])
    assert manifest.region_sizes == [end] == [filled + padding]


def test_a_constant_beside_parts_must_be_zero():
    recording = Recording(TENSORS, TARGETS, ROUTES, [Fill("t", View(1, (3,), (2,)), 2.0)])
    with pytest.raises(
        waybill.InvalidArgument, match='"t": the loader sets 3 of its elements to 2.0'
    ):
        recording.parts()


def test_columns_with_steps_are_a_part_each():
    route = Route("t", View(0, (3,), (2,)), "q", View(1, (3,), (2,)))
    recording = Recording({"q": Tensor((8,), "F32")}, {"t": TARGETS["t"]}, [route], [])
    assert [part.box for part in recording.parts()["t"]] == [((1, 2),), ((3, 4),), ((5, 6),)]


def test_too_many_parts_are_refused_by_name():
    n = 70_000
    route = Route("t", View(0, (n,), (1,)), "q", View(0, (n,), (2,)))
    recording = Recording(
        {"q": Tensor((2 * n,), "F32")}, {"t": Target((n,), (1,), "F32")}, [route], []
    )
    with pytest.raises(waybill.InvalidArgument, match='"t" from "q": .* more than 65536 boxes'):
        recording.parts()


# name, text, what the error says
BAD = [
    ("not_json", "{", "not a recording"),
    ("not_an_object", "[]", "not a recording"),
    ("something_else", "{}", "not a recording: KeyError\\('waybill_recording'\\)"),
    ("a_newer_format", '{"waybill_recording": 2}', "version 2 of the format; this release reads 1"),
    ("a_member_is_missing", '{"waybill_recording": 1, "tensors": []}', "not a recording"),
]


@pytest.mark.parametrize(("text", "said"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_what_is_no_recording(text, said):
    with pytest.raises(waybill.InvalidArgument, match=said):
        Recording.from_json(text)
