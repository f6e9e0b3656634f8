# SPDX-License-Identifier: Apache-2.0
"""What record() promises beside following copies: coverage, names, flat storages, casts, equal results."""

import doctest
import gc

import pytest

import waybill
from waybill.recording import Recording

torch = pytest.importorskip("torch")

from mixture_twin import KIMI_K2, Twin, checkpoint  # noqa: E402
from numbered_elements import numbered, recorded, replay  # noqa: E402

import waybill.torch  # noqa: E402
from waybill.torch import meta_twin, record  # noqa: E402
from waybill.torch.lineage import holds_exactly  # noqa: E402


def on_meta(**shapes):
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def f32(**shapes):
    return {name: (shape, "float32") for name, shape in shapes.items()}


def copy_all(d, p):
    for name, tensor in d.items():
        if name in p:
            p[name].copy_(tensor)


def test_the_example():
    assert doctest.testmod(waybill.torch).failed == 0


def test_the_collector_of_garbage_rests_while_a_loader_is_recorded():
    seen = []

    def load(items):
        seen.append(gc.isenabled())
        copy_all(dict(items), targets)
        if "fail" in targets:
            raise RuntimeError("no")

    targets = on_meta(w=(4,))
    record(load, f32(w=(4,)), targets)
    targets["fail"] = targets["w"]
    with pytest.raises(waybill.FailedPrecondition):
        record(load, f32(w=(4,)), targets)
    assert seen == [False, False]
    assert gc.isenabled()
    gc.disable()
    try:
        del targets["fail"]
        record(load, f32(w=(4,)), targets)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_kimi_k2_is_37_patterns_and_less_than_a_megabyte():
    """Of its full size, one rank of 16, every expert cut."""
    tensors = checkpoint(KIMI_K2)
    twin = Twin(KIMI_K2, 16, 5)
    recording = record(twin.load_weights, tensors, twin.parameters)
    assert (len(tensors), recording.patterns) == (139583, 37)
    assert sum(1 for _ in recording.routes()) == 139583
    assert len(recording.to_json()) < 20_000
    assert Recording.from_json(recording.to_json()) == recording


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_a_mixture_of_experts_is_loaded_as_recorded(expert_parallel):
    sizes = KIMI_K2._replace(
        layers=3, experts=8, hidden=256, intermediate=512, moe_intermediate=256, heads=4, q_rank=128,
        kv_rank=128, rope=32, nope=128, vocabulary=64,
    )  # fmt: skip
    shapes = {name: shape for name, (shape, _) in checkpoint(sizes).items()}
    tensors = numbered(shapes)
    for rank in range(2):
        twin = Twin(sizes, 2, rank, expert_parallel=expert_parallel)
        f32_twin = {n: torch.empty(p.shape, device="meta") for n, p in twin.parameters.items()}
        fresh = {n: torch.zeros(p.shape) for n, p in twin.parameters.items()}
        twin.parameters = f32_twin
        recording = record(twin.load_weights, f32(**shapes), f32_twin)
        twin.parameters = fresh
        twin.load_weights(iter(tensors.items()))
        shown = replay(recording, tensors)
        assert [name for name in fresh if not torch.equal(shown[name], fresh[name])] == []
        others = [n for n in shapes if ".experts." in n and int(n.split(".")[5]) // 4 != rank]
        assert set(recording.unread()) == set(others if expert_parallel else [])


def test_equal_loaders_give_equal_texts():
    def text():
        return recorded(copy_all, {"a.1": (3,), "a.0": (3,)}, {"a.1": (3,), "a.0": (3,)}).to_json()

    assert text() == text()
    assert Recording.from_json(text()).to_json() == text()


def test_everything_that_is_refused_is_in_one_error():
    def load(d, p):
        for i in range(3):
            p[f"layers.{i}.w"].copy_(d[f"layers.{i}.w"] * 2)
        p["q"].copy_(d["a"] @ d["a"])
        p["k"].copy_(d["a"])

    tensors = {**{f"layers.{i}.w": (2, 2) for i in range(3)}, "a": (2, 2)}
    targets = {**{f"layers.{i}.w": (2, 2) for i in range(3)}, "q": (2, 2), "k": (2, 2)}
    with pytest.raises(waybill.Unimplemented) as refused:
        recorded(load, tensors, targets)
    said = str(refused.value).split("\n")
    assert said[1:3] == [
        '  "layers.0.w": aten.mul computes with "layers.0.w" (and 2 more such)',
        '  "q": aten.mm computes with "a"',
    ]
    assert "skip=" in said[3]
    recording = recorded(load, tensors, targets, skip=["layers.*.w", "q"], unused=["*"])
    assert list(recording.targets()) == ["k"]


def test_what_is_computed_and_not_loaded_is_no_error():
    def load(d, p):
        (d["a"] * 2).sum()
        p["p"].copy_(d["a"])

    assert len(list(recorded(load, {"a": (2,)}, {"p": (2,)}).routes())) == 1


def test_the_rest_of_a_padded_target_is_zero():
    def load(d, p):
        p["experts"][:, :2, :3].copy_(d["a"])

    shapes = {"a": (2, 2, 3)}, {"experts": (2, 4, 4)}
    shown = replay(recorded(load, *shapes, padded=["exp*"]), numbered(shapes[0]))["experts"]
    wanted = torch.zeros(2, 4, 4)
    wanted[:, :2, :3] = numbered(shapes[0])["a"]
    assert torch.equal(shown, wanted)


def test_a_padded_target_that_no_tensor_fills_is_refused():
    with pytest.raises(waybill.FailedPrecondition, match='"p": 4 of 4 elements are not filled'):
        recorded(
            lambda d, p: p["q"].copy_(d["a"]), {"a": (2,)}, {"p": (4,), "q": (2,)}, padded=["p"]
        )


def test_targets_that_are_not_filled_are_named_with_counts():
    def load(d, p):
        p["half"][:2].copy_(d["a"])

    with pytest.raises(waybill.FailedPrecondition) as refused:
        recorded(load, {"a": (2, 3)}, {"half": (4, 3), "none.0": (2,), "none.1": (2,)})
    said = str(refused.value)
    assert '"half": 6 of 12 elements are not filled' in said
    assert '"none.0": 2 of 2 elements are not filled (and 1 more such)' in said


def test_a_copy_to_no_target_is_named_and_may_be_allowed():
    def load(d, p):
        p["p"].copy_(d["a"])
        torch.empty(2, device="meta").copy_(d["b.0"])

    tensors, targets = {"a": (2,), "b.0": (2,)}, {"p": (2,)}
    with pytest.raises(waybill.FailedPrecondition, match=r'"b.0": copied, but not to a target'):
        recorded(load, tensors, targets)
    assert recorded(load, tensors, targets, unused=["b.*"]).unread() == ["b.0"]


def test_a_tensor_that_another_one_overwrites_is_not_missed():
    def load(d, p):
        p["p"].copy_(d["a"])
        p["p"].copy_(d["b"])

    recording = recorded(load, {"a": (2,), "b": (2,)}, {"p": (2,)})
    assert [route.tensor for route in recording.routes()] == ["b"]
    assert recording.unread() == ["a"]


def test_tensors_that_no_target_needs_are_unread():
    recording = recorded(copy_all, {"p": (2,), "other": (3,)}, {"p": (2,)})
    assert recording.unread() == ["other"]


def test_the_tensor_at_which_a_loader_fails_is_named():
    def load(items):
        for name, _ in items:
            raise KeyError(name)

    with pytest.raises(waybill.FailedPrecondition, match='at or after "a": KeyError'):
        record(load, f32(a=(2,)), on_meta(p=(2,)))


def test_parameters_of_one_flat_storage_are_told_apart():
    flat = torch.empty(40, device="meta")
    targets = {"w": flat[:12].view(3, 4), "v": flat[20:32].view(4, 3).t(), "b": flat[32:37]}

    def load(d, flat, p):
        flat[:37].copy_(d["all"])
        p["v"][1].copy_(d["row"])

    tensors = {"all": (37,), "row": (4,)}
    recording = record(lambda items: load(dict(items), flat, targets), f32(**tensors), targets)
    real = torch.zeros(40)
    shown = {"w": real[:12].view(3, 4), "v": real[20:32].view(4, 3).t(), "b": real[32:37]}
    load(numbered(tensors), real, shown)
    replayed = replay(recording, numbered(tensors))
    for name, expected in shown.items():
        assert torch.equal(replayed[name], expected)
        assert replayed[name].stride() == expected.stride()


def test_of_tied_parameters_the_first_name_counts():
    head = torch.empty(4, 2, device="meta")
    targets = {"embed": head, "lm_head": head}
    recording = record(lambda items: copy_all(dict(items), targets), f32(embed=(4, 2)), targets)
    assert list(recording.targets()) == ["embed"]


def test_targets_that_overlap_are_refused():
    flat = torch.empty(8, device="meta")
    with pytest.raises(waybill.InvalidArgument, match='"a" and "b" overlap'):
        record(list, {}, {"a": flat[:5], "b": flat[4:]})


def test_targets_with_memory_are_refused():
    with pytest.raises(waybill.InvalidArgument, match="meta_twin"):
        record(list, {}, {"p": torch.empty(2)})


# name, dtype of the tensor, the casts, dtype of the target, whether one cast does the same
CASTS = [
    ("one_cast", "float32", [], "bfloat16", True),
    ("widening_and_back", "bfloat16", ["float32"], "bfloat16", True),
    ("widening_first", "bfloat16", ["float32"], "float16", True),
    ("rounding_then_widening", "float32", ["bfloat16"], "float32", False),
    ("two_roundings", "float32", ["float16"], "bfloat16", False),
    ("rounding_to_the_targets_dtype", "float32", ["bfloat16"], "bfloat16", True),
    ("f16_does_not_hold_bf16", "bfloat16", ["float16"], "float32", False),
]


@pytest.mark.parametrize(
    ("first", "casts", "last", "is_one"), [c[1:] for c in CASTS], ids=[c[0] for c in CASTS]
)
def test_casts_are_followed_if_one_cast_does_the_same(first, casts, last, is_one):
    target = torch.empty(4, dtype=getattr(torch, last), device="meta")

    def load(items):
        ((_, tensor),) = items
        for dtype in casts:
            tensor = tensor.to(getattr(torch, dtype))
        target.copy_(tensor)

    if is_one:
        recording = record(load, {"a": ((4,), first)}, {"p": target})
        assert len(list(recording.routes())) == 1
    else:
        with pytest.raises(waybill.Unimplemented, match='rounds twice, of "a"'):
            record(load, {"a": ((4,), first)}, {"p": target})


def test_bits_that_are_copied_as_another_dtype_are_followed():
    target = torch.empty(4, dtype=torch.float8_e4m3fn, device="meta")

    def load(items):
        ((_, tensor),) = items
        target.view(torch.uint8)[1:].copy_(tensor.view(torch.uint8)[:-1])
        target[:1].copy_(tensor[-1:])

    recording = record(load, {"a": ((4,), torch.float8_e4m3fn)}, {"p": target})
    assert len(list(recording.routes())) == 2


@pytest.mark.parametrize("narrow", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_a_dtype_holds_another_if_every_value_comes_back(narrow, wide):
    narrow, wide = getattr(torch, narrow), getattr(torch, wide)
    bits = torch.arange(1 << 8 * narrow.itemsize).to(
        {1: torch.uint8, 2: torch.uint16}[narrow.itemsize]
    )
    values = bits.view(narrow).float()
    values = values[values.isfinite()]
    comes_back = torch.equal(values.to(wide).float(), values)
    assert holds_exactly(narrow, wide) == comes_back


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = torch.nn.Parameter(torch.arange(12.0))
        self.first = torch.nn.Parameter(self.flat.data[:4].view(2, 2))
        self.tied = self.first
        self.first.weight_loader = self.load_one
        self.register_buffer("map", torch.tensor([2, 0, 1]))
        self.register_buffer("bias", torch.ones(3))

    def load_one(self, parameter, tensor):
        parameter.data.copy_(tensor)


def test_a_twin_shares_what_its_module_shares_and_has_no_memory():
    module = Tied()
    twin = meta_twin(module)
    assert twin.tied is twin.first
    assert twin.first.device.type == twin.bias.device.type == "meta"
    assert twin.first.untyped_storage()._cdata == twin.flat.untyped_storage()._cdata
    assert twin.map.tolist() == [2, 0, 1]
    assert twin.first.weight_loader.__self__ is twin
    twin.map[0] = 7
    assert module.map[0] == 2
    assert module.first.weight_loader.__self__ is module


SAME = f32(a=(2,))


def count_runs(runs):
    def load(items):
        runs.append(1)
        load.target.copy_(dict(items)["a"])

    load.target = torch.empty(2, device="meta")
    return load


def test_a_cached_recording_is_read(tmp_path):
    runs = []
    load = count_runs(runs)
    options = {"cache": tmp_path / "new", "depends_on": {"tp_rank": 0}}
    first = record(load, SAME, {"p": load.target}, **options)
    second = record(load, SAME, {"p": load.target}, **options)
    assert first == second
    assert len(runs) == 1
    assert len(list((tmp_path / "new").iterdir())) == 1


# name, what changes
CHANGES = [
    ("depends_on", {"depends_on": {"tp_rank": 1}}),
    ("tensors", {"tensors": {**SAME, "b": ((2,), "float32")}}),
    ("dtype", {"tensors": {"a": ((2,), "bfloat16")}}),
    ("target", {"targets": "q"}),
    ("unused", {"unused": ["b"]}),
]


@pytest.mark.parametrize("change", [c[1] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_cached_recording_of_something_else_is_not_read(tmp_path, change):
    runs = []
    load = count_runs(runs)
    options = {"tensors": SAME, "targets": "p", "cache": tmp_path, "depends_on": {"tp_rank": 0}}
    for given in (options, {**options, **change}):
        record(load, **{**given, "targets": {given["targets"]: load.target}})
    assert len(runs) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b.replace(b"[2]", b"[3]"), lambda b: b""]
)
def test_a_damaged_cached_recording_is_made_anew(tmp_path, damage):
    runs = []
    load = count_runs(runs)
    options = {"cache": tmp_path, "depends_on": {}}
    first = record(load, SAME, {"p": load.target}, **options)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert record(load, SAME, {"p": load.target}, **options) == first
    assert len(runs) == 2
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    load = count_runs([])
    (tmp_path / "file").write_text("")
    record(load, SAME, {"p": load.target}, cache=tmp_path / "file", depends_on={})


def test_the_default_folder_is_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load = count_runs([])
    record(load, SAME, {"p": load.target}, cache=True, depends_on={})
    assert len(list((tmp_path / "waybill" / "recordings").iterdir())) == 1


def test_a_cache_needs_to_know_what_the_loader_depends_on(tmp_path):
    with pytest.raises(waybill.InvalidArgument, match="depends_on"):
        record(list, {}, {}, cache=tmp_path)
