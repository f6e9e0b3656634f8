# SPDX-License-Identifier: Apache-2.0
"""A loader in plain torch that does what vLLM does, recorded, against where vLLM's own loader puts every element."""

import pytest
from golden_maps import golden_map
from qwen3_loader import Qwen3Loader

torch = pytest.importorskip("torch")

from waybill.torch import record  # noqa: E402

# the file, ranks, rank, this rank's experts
MAPS = [
    ("vllm_tiny-qwen3_tp4r3", 4, 3, None),
    ("vllm_tiny-qwen3_tp8r5", 8, 5, None),
    ("vllm_tiny-qwen3-moe_tp4r0", 4, 0, None),
    ("vllm_tiny-qwen3-moe_tp4r2ep", 4, 2, range(4, 6)),
]


@pytest.mark.parametrize(("file", "ranks", "rank", "experts"), MAPS, ids=[m[0] for m in MAPS])
def test_every_element_is_where_vllm_puts_it(file, ranks, rank, experts):
    golden = golden_map(file)
    parameters = {name: torch.empty(shape, device="meta") for name, shape in golden["dest"].items()}
    model = Qwen3Loader(parameters, ranks, rank, experts, head=16)
    tensors = {name: (shape, "float32") for name, (_, shape) in golden["source"].items()}
    recording = record(model.load_weights, tensors, parameters)
    shown = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in golden["dest"].items()}
    for target, to, tensor, of in recording.routes():
        first, shape = golden["source"][tensor]
        numbers = torch.arange(first, first + torch.Size(shape).numel())
        selected = shown[target].as_strided(to.shape, to.strides, to.offset)
        selected.copy_(numbers.as_strided(of.shape, of.strides, of.offset))
    for name, runs in golden["runs"].items():
        expected = torch.zeros(torch.Size(golden["dest"][name]).numel(), dtype=torch.int64)
        for offset, number, length in runs:
            expected[offset : offset + length] = torch.arange(number, number + length)
        assert torch.equal(shown[name].flatten(), expected), name
