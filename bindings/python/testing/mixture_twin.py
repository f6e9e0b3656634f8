# SPDX-License-Identifier: Apache-2.0
"""A twin, in plain torch, of how vLLM loads a mixture of experts with multi-head latent attention, for tests.

It has the parameters and the loader of one rank of Kimi-K2 in FP8 blocks: q_a and kv_a fused, gate and up stacked with
w13 of all experts of a layer, each expert narrowed to the rank's rows or columns and copied. Sizes are arguments.
"""

import re
from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
BLOCK = 128


class Sizes(NamedTuple):
    layers: int = 61  # The first one is dense.
    experts: int = 384
    hidden: int = 7168
    intermediate: int = 18432
    moe_intermediate: int = 2048
    heads: int = 64
    q_rank: int = 1536
    kv_rank: int = 512
    rope: int = 64
    nope: int = 128
    vocabulary: int = 163840


KIMI_K2 = Sizes()


def _linear(name, rows, columns):
    """A weight in FP8 blocks, and its scales."""
    yield f"{name}.weight", (rows, columns), FP8
    scales = (-(-rows // BLOCK), -(-columns // BLOCK))
    yield f"{name}.weight_scale_inv", scales, torch.float32


def _mlp(name, hidden, intermediate):
    yield from _linear(f"{name}.gate_proj", intermediate, hidden)
    yield from _linear(f"{name}.up_proj", intermediate, hidden)
    yield from _linear(f"{name}.down_proj", hidden, intermediate)


def _all(s):
    bf16 = torch.bfloat16
    yield "model.embed_tokens.weight", (s.vocabulary, s.hidden), bf16
    for layer in range(s.layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        yield from _linear(f"{attention}.q_a_proj", s.q_rank, s.hidden)
        yield f"{attention}.q_a_layernorm.weight", (s.q_rank,), bf16
        yield from _linear(f"{attention}.q_b_proj", s.heads * (s.nope + s.rope), s.q_rank)
        yield from _linear(f"{attention}.kv_a_proj_with_mqa", s.kv_rank + s.rope, s.hidden)
        yield f"{attention}.kv_a_layernorm.weight", (s.kv_rank,), bf16
        yield from _linear(f"{attention}.kv_b_proj", s.heads * 2 * s.nope, s.kv_rank)
        yield from _linear(f"{attention}.o_proj", s.hidden, s.heads * s.nope)
        yield f"{prefix}.input_layernorm.weight", (s.hidden,), bf16
        yield f"{prefix}.post_attention_layernorm.weight", (s.hidden,), bf16
        if layer == 0:
            yield from _mlp(f"{prefix}.mlp", s.hidden, s.intermediate)
            continue
        yield f"{prefix}.mlp.gate.weight", (s.experts, s.hidden), bf16
        yield f"{prefix}.mlp.gate.e_score_correction_bias", (s.experts,), torch.float32
        for expert in range(s.experts):
            yield from _mlp(f"{prefix}.mlp.experts.{expert}", s.hidden, s.moe_intermediate)
        yield from _mlp(f"{prefix}.mlp.shared_experts", s.hidden, s.moe_intermediate)
    yield "model.norm.weight", (s.hidden,), bf16
    yield "lm_head.weight", (s.vocabulary, s.hidden), bf16


def checkpoint(sizes):
    """{name: (shape, dtype)}, in the order of a checkpoint."""
    return {name: (shape, dtype) for name, shape, dtype in _all(sizes)}


FUSED = {
    "q_a_proj": ("fused_qkv_a_proj", 0),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj", 1),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
ROWS = {"q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"}
COLUMNS = {"o_proj", "down_proj"}
EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)\.(weight.*)")


def _fused(name):
    """The parameter that a tensor goes to, and the name of the tensor's layer."""
    path, _, kind = name.rpartition(".")
    prefix, dot, leaf = path.rpartition(".")
    return f"{prefix}{dot}{FUSED.get(leaf, (leaf, 0))[0]}.{kind}", leaf


class Twin:
    """One rank's parameters, made where `device` says, and its load_weights()."""

    def __init__(self, sizes, ranks, rank, *, expert_parallel=False, device="meta"):
        self.ranks, self.rank, self.expert_parallel = ranks, rank, expert_parallel
        self.local = sizes.experts // ranks if expert_parallel else sizes.experts
        self.first = self.local * rank if expert_parallel else 0
        self.parameters = {}
        shapes = {}
        dtypes = {}
        for name, shape, dtype in _all(sizes):
            place, shape = self._parameter(name, shape)
            before = shapes.get(place)
            shapes[place] = (
                shape
                if before is None or ".experts." in place
                else (before[0] + shape[0], *shape[1:])
            )
            dtypes[place] = dtype
        for name, shape in shapes.items():
            self.parameters[name] = torch.zeros(shape, dtype=dtypes[name], device=device)

    def _cut(self, leaf, shape):
        """This rank's shape of a tensor."""
        if leaf in ROWS:
            return (shape[0] // self.ranks, *shape[1:])
        if leaf in COLUMNS:
            return (shape[0], shape[1] // self.ranks)
        return shape

    def _parameter(self, name, shape):
        expert = EXPERT.fullmatch(name)
        if expert:
            experts, _, leaf, kind = expert.groups()
            rows, columns = shape if self.expert_parallel else self._cut(leaf, shape)
            if leaf == "down_proj":
                return f"{experts}.w2_{kind}", (self.local, rows, columns)
            return f"{experts}.w13_{kind}", (self.local, 2 * rows, columns)
        place, leaf = _fused(name)
        return place, self._cut(leaf, shape)

    def load_weights(self, items):
        """Copies each tensor to its place, as vLLM's weight loaders do."""
        for name, tensor in items:
            expert = EXPERT.fullmatch(name)
            if expert:
                self._load_expert(*expert.groups(), tensor)
                continue
            place, leaf = _fused(name)
            parameter = self.parameters[place]
            tensor = self._shard(leaf, tensor)
            if leaf in FUSED:
                begin = (parameter.shape[0] - tensor.shape[0]) if FUSED[leaf][1] else 0
                parameter.data.narrow(0, begin, tensor.shape[0]).copy_(tensor)
            else:
                assert parameter.shape == tensor.shape
                parameter.data.copy_(tensor)

    def _shard(self, leaf, tensor):
        for leaves, dim in ((ROWS, 0), (COLUMNS, 1)):
            if leaf in leaves:
                size = tensor.shape[dim] // self.ranks
                return tensor.narrow(dim, self.rank * size, size)
        return tensor

    def _load_expert(self, experts, number, leaf, kind, tensor):
        local = int(number) - self.first
        if not 0 <= local < self.local:
            return
        if not self.expert_parallel:
            tensor = self._shard(leaf, tensor)
        stacked = self.parameters[f"{experts}.{'w2' if leaf == 'down_proj' else 'w13'}_{kind}"]
        place = stacked.data[local]
        if leaf != "down_proj":
            half = place.shape[0] // 2
            place = place.narrow(0, half if leaf == "up_proj" else 0, half)
        place.copy_(tensor)
