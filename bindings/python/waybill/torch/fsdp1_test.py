# SPDX-License-Identifier: Apache-2.0
"""What the layout of FSDP1 holds on each rank, against what torch's own FullyShardedDataParallel makes of the model."""

import json
import struct

import pytest

import waybill

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 18, "intermediate_size": 11,
    "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1,
    "vocab_size": 35, "tie_word_embeddings": False,
}  # fmt: skip
FIRST = 100  # The number of the first element.
FILLERS = (0, 42)  # The values with which torch fills the end of an array, and the gaps in it.


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linears = {
            "q_proj": (18, True),
            "k_proj": (6, True),
            "v_proj": (6, True),
            "o_proj": (18, False),
        }
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(18, rows, bias=bias) for name, (rows, bias) in linears.items()}
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(18, 11, bias=False),
                "up_proj": nn.Linear(18, 11, bias=False),
                "down_proj": nn.Linear(11, 18, bias=False),
            }
        )
        self.input_layernorm = nn.RMSNorm(18)
        self.post_attention_layernorm = nn.RMSNorm(18)


class Model(nn.Module):
    """The modules of Qwen2, in the order that transformers has."""

    def __init__(self):
        super().__init__()
        layers = nn.ModuleList(Layer() for _ in range(2))
        self.model = nn.ModuleDict(
            {"embed_tokens": nn.Embedding(35, 18), "layers": layers, "norm": nn.RMSNorm(18)}
        )
        self.lm_head = nn.Linear(18, 35, bias=False)
        with torch.no_grad():
            next_number = FIRST
            for parameter in self.parameters():
                numbers = torch.arange(next_number, next_number + parameter.numel())
                parameter.copy_(numbers.reshape(parameter.shape))
                next_number += parameter.numel()


@pytest.fixture
def layout(tmp_path):
    """The layout of a checkpoint with the same numbers."""
    header, data = {}, b""
    for name, parameter in Model().named_parameters():
        begin = len(data)
        data += parameter.detach().numpy().tobytes()
        ends = [begin, len(data)]
        header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": ends}
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return waybill.Layout(checkpoint=tmp_path)


def flat_arrays(rank, world, use_orig_params):
    """Returns what torch holds on a rank: the arrays of the layers, then that of the rest, with 0 as filler."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        wrapped = FullyShardedDataParallel(
            Model(),
            auto_wrap_policy=ModuleWrapPolicy({Layer}),
            use_orig_params=use_orig_params,
            device_id=torch.device("cpu"),
        )
        root, *layers = FullyShardedDataParallel.fsdp_modules(wrapped)
        arrays = [unit._handle.flat_param.detach().tolist() for unit in [*layers, root]]
    finally:
        dist.destroy_process_group()
    return [[0 if number in FILLERS else number for number in array] for array in arrays]


@pytest.mark.parametrize("params", ["flat", "original"])
@pytest.mark.parametrize("world", [1, 3, 7])
def test_each_element_of_each_rank_is_where_torch_has_it(layout, world, params):
    for rank in range(world):
        expected = []
        for array in flat_arrays(rank, world, params == "original"):
            expected += [*array, *[0] * (-len(array) % 16)]  # At multiples of 64 bytes.
        manifest = layout.trainer_manifest(f"fsdp1,fsdp={world},params={params}", rank)
        held = torch.zeros(manifest.region_sizes[0] // 4)
        layout.load(manifest, held)
        assert held.tolist() == expected, f"rank {rank}"
