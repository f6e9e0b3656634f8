# SPDX-License-Identifier: Apache-2.0
"""Small loaders, each of which does one thing that engines do, against the same code on numbered elements."""

import random

import pytest

import waybill

torch = pytest.importorskip("torch")

from numbered_elements import differences, recorded  # noqa: E402


def staging_buffer_is_used_twice(d, p):
    staging = torch.empty_like(d["a"])
    staging.copy_(d["a"])
    p["p"].copy_(staging)
    staging.copy_(d["b"])
    p["q"].copy_(staging)


def part_is_overwritten(d, p):
    p["p"].fill_(0)
    p["p"][:3].copy_(d["a"])
    p["p"][1:2].copy_(d["b"])


def items_are_set(d, p):
    p["p"][2] = d["a"]
    p["p"][:2] = d["b"].unflatten(0, (2, 3))
    p["p"].data[3, 1:] = d["a"][1:]
    p["p"][3, 0].fill_(0)


def parameter_is_copied_to_itself(d, p):
    p["p"][:2].copy_(d["a"])
    p["p"][2:].copy_(p["p"][:2])
    p["p"][:2].copy_(d["b"])


def zeros_of_the_loader_are_padding(d, p):
    padded = torch.zeros(4, 4)
    padded[:3] = d["a"]
    p["p"].copy_(padded)


def stepped_writes_interleave(d, p):
    p["p"][::2].copy_(d["a"])
    p["p"][1::2].copy_(d["b"])


def interleaved_part_is_overwritten(d, p):
    p["p"].copy_(d["a"])
    p["p"][:, 1::3].copy_(d["b"][:, ::2])
    p["p"][1::2, ::2].fill_(3)


def scalar_is_filled_in(d, p):
    p["p"].fill_(d["a"].item())


def scalar_is_set(d, p):
    p["p"][1] = d["a"].item()
    p["p"][0] = d["a"]


def rope_order(d, p):
    p["p"].copy_(d["a"].view(2, 2, 3, 5).transpose(1, 2).reshape(12, 5))


# name, the loader, tensors, targets
FOLLOWED = [
    ("transpose_into_a_slice", lambda d, p: (p["p"][1].copy_(d["a"].t()), p["p"][0].zero_()), {"a": (3, 5)}, {"p": (2, 5, 3)}),
    ("cat_then_narrow", lambda d, p: p["p"].copy_(torch.cat([d["a"], d["b"][1:]], 0)[1:5]), {"a": (3, 5), "b": (3, 5)}, {"p": (4, 5)}),
    ("cat_of_columns_flattened", lambda d, p: p["p"].copy_(torch.cat([d["a"], d["b"]], 1).view(-1)), {"a": (3, 5), "b": (3, 4)}, {"p": (27,)}),
    ("stack_and_transpose", lambda d, p: p["p"].copy_(torch.stack([d["a"], d["b"]], 1).transpose(0, 2)), {"a": (3, 5), "b": (3, 5)}, {"p": (5, 2, 3)}),
    ("rope_order", rope_order, {"a": (12, 5)}, {"p": (12, 5)}),
    ("interleaved_heads", lambda d, p: p["p"].copy_(d["a"].view(2, 6, 5)[:, :4].reshape(8, 5)), {"a": (12, 5)}, {"p": (8, 5)}),
    ("every_second_column", lambda d, p: p["p"].copy_(d["a"][:, ::2]), {"a": (3, 8)}, {"p": (3, 4)}),
    ("repeat_interleave", lambda d, p: p["p"].copy_(d["a"].repeat_interleave(2, 0)), {"a": (3, 4)}, {"p": (6, 4)}),
    ("repeat", lambda d, p: p["p"].copy_(d["a"].repeat(2, 3)), {"a": (3, 4)}, {"p": (6, 12)}),
    ("broadcast", lambda d, p: p["p"].copy_(d["a"]), {"a": (1, 4)}, {"p": (6, 4)}),
    ("index_by_constants", lambda d, p: p["p"].copy_(d["a"][torch.tensor([3, 0, 1, -2])]), {"a": (4, 2)}, {"p": (4, 2)}),
    ("index_by_a_mask", lambda d, p: p["p"].copy_(d["a"][torch.tensor([True, False, True])]), {"a": (3, 2)}, {"p": (2, 2)}),
    ("index_on_the_weights_device", lambda d, p: p["p"].copy_(d["a"][torch.tensor([1, 0]).to(d["a"].device)]), {"a": (2, 2)}, {"p": (2, 2)}),
    ("index_select", lambda d, p: p["p"].copy_(d["a"].index_select(1, torch.tensor([1, 0]))), {"a": (4, 2)}, {"p": (4, 2)}),
    ("pad", lambda d, p: p["p"].copy_(torch.nn.functional.pad(d["a"], (0, 2, 1, 0))), {"a": (3, 4)}, {"p": (4, 6)}),
    ("pad_that_crops", lambda d, p: p["p"].copy_(torch.nn.functional.pad(d["a"], (-1, 2))), {"a": (3, 4)}, {"p": (3, 5)}),
    ("staging_buffer_is_used_twice", staging_buffer_is_used_twice, {"a": (3, 4), "b": (3, 4)}, {"p": (3, 4), "q": (3, 4)}),
    ("part_is_overwritten", part_is_overwritten, {"a": (3, 4), "b": (1, 4)}, {"p": (4, 4)}),
    ("items_are_set", items_are_set, {"a": (3, 4), "b": (6, 4)}, {"p": (4, 3, 4)}),
    ("parameter_is_copied_to_itself", parameter_is_copied_to_itself, {"a": (2, 4), "b": (2, 4)}, {"p": (4, 4)}),
    ("zeros_of_the_loader_are_padding", zeros_of_the_loader_are_padding, {"a": (3, 4)}, {"p": (4, 4)}),
    ("stepped_writes_interleave", stepped_writes_interleave, {"a": (3, 4), "b": (3, 4)}, {"p": (6, 4)}),
    ("a_given_tensor_is_zeroed_before_it_is_copied", lambda d, p: p["p"].copy_(d["a"].zero_()), {"a": (3, 4)}, {"p": (3, 4)}),
    ("interleaved_part_is_overwritten", interleaved_part_is_overwritten, {"a": (4, 7), "b": (4, 4)}, {"p": (4, 7)}),
    ("scalar_is_filled_in", scalar_is_filled_in, {"a": (1,)}, {"p": (2,)}),
    ("scalar_is_set", scalar_is_set, {"a": ()}, {"p": (2,)}),
    ("contiguous_of_a_transpose", lambda d, p: p["p"].copy_(d["a"].t().contiguous().view(-1)), {"a": (3, 5)}, {"p": (15,)}),
    ("chunk_and_unbind", lambda d, p: [p["p"][i].copy_(x.chunk(2, 0)[1]) for i, x in enumerate(d["a"].unbind(0))], {"a": (3, 4, 2)}, {"p": (3, 2, 2)}),
    ("empty_tensor", lambda d, p: (p["p"][:0].copy_(d["a"][:0]), p["p"].copy_(d["a"])), {"a": (3, 4)}, {"p": (3, 4)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("load", "tensors", "targets"), [c[1:] for c in FOLLOWED], ids=[c[0] for c in FOLLOWED]
)
def test_every_element_is_where_the_loader_puts_it(load, tensors, targets):
    options = {"unused": ["*"]}
    assert differences(load, tensors, targets, **options) == []


def branches(d, p):
    if d["a"].item() > 0:
        p["p"].copy_(d["a"])


def in_place(d, p):
    d["a"].add_(1)
    p["p"].copy_(d["a"])


def unset_staging(d, p):
    staging = torch.empty_like(d["a"])
    staging[:2].copy_(d["a"][:2])
    p["p"].copy_(staging)


A = {"a": (3, 4)}
P = {"p": (3, 4)}
ADD = "aten.add_ computes with"
# name, the loader, tensors, targets, what the error says
REFUSED = [
    ("item_in_a_tensor", lambda d, p: p["p"].copy_(torch.tensor([d["a"].item()] * 2)), {"a": (1,)}, {"p": (2,)}, '"p": values that the loader computed itself'),
    ("item_times_2", lambda d, p: p["p"].fill_(d["a"].item() * 2), {"a": (1,)}, {"p": (2,)}, 'reads the value of "a"'),
    ("item_in_full", lambda d, p: p["p"].copy_(torch.full((2,), d["a"].item())), {"a": (1,)}, {"p": (2,)}, 'reads the value of "a"'),
    ("item_in_a_text", lambda d, p: p["p"].fill_(float("{:f}".format(d["a"].item()))), {"a": (1,)}, {"p": (2,)}, 'computed from item() of "a"'),
    ("branch_on_item", branches, {"a": (1,)}, {"p": (1,)}, 'reads the value of "a"'),
    ("item_of_integers", lambda d, p: p["p"].fill_(d["a"].long().item()), {"a": (1,)}, {"p": (2,)}, "reads the value of what the loader computed"),
    ("branch_on_values", lambda d, p: p["p"].copy_(d["a"].double() if (d["a"] > 0).any() else d["a"]), A, P, "reads the value of"),
    ("matmul", lambda d, p: p["p"].copy_(d["a"] @ d["b"]), {"a": (3, 4), "b": (4, 3)}, {"p": (3, 3)}, '"p": aten.mm computes with "a", "b"'),
    ("dequantise", lambda d, p: p["p"].copy_(d["a"] * d["b"]), {"a": (3, 4), "b": (3, 4)}, P, '"p": aten.mul computes with "a", "b"'),
    ("weight_plus_1", lambda d, p: p["p"].copy_(d["a"] + 1), A, P, '"p": aten.add computes with "a"'),
    ("bytes_of_another_size", lambda d, p: p["p"].copy_(d["a"].view(torch.int16)[:, ::2]), A, P, "seen as torch.int16"),
    ("bits_for_numbers", lambda d, p: p["p"].copy_(d["a"].view(torch.int32)), A, P, "bytes of torch.float32 are taken for torch.int32"),
    ("two_roundings", lambda d, p: p["p"].copy_(d["a"].half().float()), A, P, "rounds twice"),
    ("numpy", lambda d, p: p["p"].copy_(torch.from_numpy(d["a"].numpy())), A, P, "failed while it was recorded on meta tensors"),
    ("constant_on_meta", lambda d, p: (p["p"].copy_(d["a"]), p["p"][0].copy_(torch.arange(4.0, device="meta"))), A, P, "a constant on the meta device"),
    ("constants", lambda d, p: (p["p"].copy_(d["a"]), p["p"][0].copy_(torch.arange(4.0))), A, P, "values that the loader computed itself"),
    ("tensor_changed_in_place", in_place, A, P, '"p": aten.add_ computes with "a"'),
    ("parameter_changed_in_place", lambda d, p: p["p"].add_(d["a"]), A, P, '"p": aten.add_ computes with "p", "a"'),
    ("out", lambda d, p: torch.add(d["a"], 1, out=p["p"]), A, P, '"p": aten.add computes with'),
    ("index_copy", lambda d, p: p["p"].index_copy_(0, torch.tensor([1, 0, 2]), d["a"]), A, P, '"p": aten.index_copy_ computes with'),
    ("other_data", lambda d, p: setattr(p["p"], "data", d["a"].clone()), A, P, '"p": the loader gives the parameter other memory'),
    ("unset_staging", unset_staging, A, P, "a tensor of shape (3, 4) are read that the loader has not copied"),
    ("composed_function", lambda d, p: (p["p"].copy_(d["a"]), p["p"].copy_(-torch.exp(p["p"].float()))), A, P, '"p": aten.neg computes with'),
    ("other_values_of_a_set", lambda d, p: p["p"].copy_(torch.sort(d["a"])[0]), A, P, '"p": aten.sort computes with "a"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("load", "tensors", "targets", "said"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_what_is_no_copy_is_refused_by_name(load, tensors, targets, said):
    with pytest.raises((waybill.Unimplemented, waybill.FailedPrecondition)) as refused:
        recorded(load, tensors, targets)
    assert said in str(refused.value)


def random_loader(seed):
    """A loader that fills its targets by views that a generator chose, in pieces and through staging memory."""

    def change(rng, tensor):
        kind = rng.choice(
            ["narrow", "transpose", "step", "flatten", "split", "clone", "cat", "same"]
        )
        d = rng.randrange(tensor.dim())
        n = tensor.shape[d]
        if kind == "narrow" and n > 1:
            begin = rng.randrange(n)
            return tensor.narrow(d, begin, rng.randint(1, n - begin))
        if kind == "transpose":
            return tensor.transpose(d, rng.randrange(tensor.dim()))
        if kind == "step":
            return tensor[(slice(None),) * d + (slice(rng.randrange(n), None, rng.randint(1, 3)),)]
        if kind == "flatten":
            return tensor.reshape(-1)
        if kind == "split" and n % 2 == 0:
            return tensor.unflatten(d, (2, n // 2))
        if kind == "clone":
            return tensor.clone()
        if kind == "cat":
            return torch.cat([tensor.narrow(d, n // 2, n - n // 2), tensor.narrow(d, 0, n // 2)], d)
        return tensor

    def load(d, p):
        rng = random.Random(seed)
        staging = torch.zeros(12, 5)
        p["p"].zero_()
        for _ in range(rng.randint(1, 4)):
            tensor = d[rng.choice("ab")]
            for _ in range(rng.randint(0, 4)):
                tensor = change(rng, tensor)
            if rng.random() < 0.4:
                rows = staging.view(-1)[: tensor.numel()]
                rows.copy_(tensor.reshape(-1)[: len(rows)])
                tensor = change(rng, staging)
            to = p["p"].view(-1)
            begin, step = rng.randrange(20), rng.randint(1, 2)
            to = to[begin::step][: tensor.numel()]
            to.copy_(tensor.reshape(-1)[: len(to)])

    return load


@pytest.mark.parametrize("seed", range(300))
def test_random_views_are_followed(seed):
    load, tensors = random_loader(seed), {"a": (6, 4), "b": (2, 3, 4)}
    assert differences(load, tensors, {"p": (7, 8)}, unused=["*"]) == []
