# SPDX-License-Identifier: Apache-2.0
"""How vLLM loads Qwen3, with and without experts, in plain torch, for tests."""

import re

EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)_proj\.weight")


class Qwen3Loader:
    """One rank's loader: heads of q over all ranks, heads of k and v repeated if there are fewer than ranks."""

    def __init__(self, parameters, ranks, rank, experts, head):
        self.parameters, self.ranks, self.rank = parameters, ranks, rank
        self.experts = experts  # The range of this rank's, or None: every expert is cut.
        self.head = head

    def load_weights(self, items):
        for name, tensor in items:
            expert = EXPERT.fullmatch(name)
            if expert:
                self.load_expert(expert[1], int(expert[2]), expert[3], tensor)
            elif re.search(r"\.[qkv]_proj\.", name):
                self.load_qkv(name, tensor)
            elif re.search(r"\.(gate|up)_proj\.", name):
                fused = self.parameters[re.sub(r"\.(gate|up)_proj", ".gate_up_proj", name)]
                half = fused.narrow(
                    0, fused.shape[0] // 2 * (".up_proj" in name), fused.shape[0] // 2
                )
                half.copy_(self.cut(tensor, 0))
            elif re.search(r"\.(o|down)_proj\.", name):
                self.parameters[name].copy_(self.cut(tensor, 1))
            elif name in ("model.embed_tokens.weight", "lm_head.weight"):
                self.load_vocabulary(self.parameters[name], tensor)
            else:
                self.parameters[name].copy_(tensor)

    def cut(self, tensor, dim):
        size = tensor.shape[dim] // self.ranks
        return tensor.narrow(dim, self.rank * size, size)

    def load_vocabulary(self, parameter, tensor):
        begin = self.rank * parameter.shape[0]
        rows = min(parameter.shape[0], tensor.shape[0] - begin)
        parameter[:rows].data.copy_(tensor.narrow(0, begin, rows))
        parameter[rows:].data.fill_(0)

    def load_qkv(self, name, tensor):
        which = re.search(r"\.([qkv])_proj\.", name)[1]
        fused = self.parameters[name.replace(f"{which}_proj", "qkv_proj")]
        heads = tensor.shape[0] // self.head
        mine = max(heads // self.ranks, 1) * self.head
        begin = self.rank * heads // self.ranks * self.head
        at = {"q": 0, "k": fused.shape[0] - 2 * mine, "v": fused.shape[0] - mine}[which]
        fused.data.narrow(0, at, mine).copy_(tensor.narrow(0, begin, mine))

    def load_expert(self, prefix, number, leaf, tensor):
        if self.experts is not None:
            if number not in self.experts:
                return
            number -= self.experts.start
        else:
            tensor = self.cut(tensor, 1 if leaf == "down" else 0)
        stacked = "w2" if leaf == "down" else "w13"
        place = self.parameters[f"{prefix}.routed_experts.{stacked}_weight"].data[number]
        if leaf != "down":
            half = place.shape[0] // 2
            place = place.narrow(0, half * (leaf == "up"), half)
        place.copy_(tensor)
