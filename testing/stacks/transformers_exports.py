# SPDX-License-Identifier: Apache-2.0
"""Tests transformers as a trainer: its models stack experts, and its own export makes the tensors of the checkpoint of them.

    python transformers_exports.py            runs every model
    python transformers_exports.py MODEL...   runs the named models

transformers loads a checkpoint of numbered elements, so that each element of each parameter says where it comes from. Its export
(revert_weight_conversion) is recorded, and must say the same for every element. Then the same model is sharded by FSDP2, and a rank
of two, whose other rank is not there, must export its shards as what they were loaded from.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from checkpoints import checkpoint_of, config_of

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bindings" / "python" / "testing"))

MODELS = [
    "tiny-qwen3",
    "tiny-qwen3-moe",
    "tiny-deepseek-v3-bf16",
    "tiny-glm-4.5",
    "tiny-gpt-oss-bf16",
    "tiny-qwen3-next",
    "tiny-llama-4",
]


def compare(name, folder):
    """Ends the program unless each element is exported as what it was loaded from."""
    import torch
    from numbered_elements import numbered, replay
    from safetensors.torch import save_file
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion
    from waybill.torch import record_export

    tensors = numbered({name: shape for name, (shape, _) in checkpoint_of(name).items()})
    config = config_of(name) | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # A tied lm_head is exported, and is in no checkpoint.
    tied = ["lm_head.weight"] if config["tie_word_embeddings"] else []

    def check(kind, held):
        recording = record_export(
            model, lambda twin: revert_weight_conversion(twin, twin.state_dict()), skip=tied
        )
        if recording.tensors().keys() != tensors.keys():
            sys.exit(f"{name}: exports {sorted(recording.tensors().keys() ^ tensors.keys())[:5]}")
        filled = replay(recording, tensors)
        parameters = {n: held(parameter) for n, parameter in model.named_parameters()}
        wrong = [n for n, p in parameters.items() if p.numel() and not torch.equal(filled[n], p)]
        if wrong:
            sys.exit(f"{name}{kind}: {len(wrong)} parameters are exported as others: {wrong[:5]}")
        elements = sum(parameter.numel() for parameter in filled.values())
        print(
            f"{name}{kind}: {elements} elements of {len(filled)} parameters and buffers", flush=True
        )

    check("", lambda parameter: parameter)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    check(", sharded", lambda parameter: parameter.to_local())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    models = parser.parse_args().models or MODELS

    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            compare(model, Path(folder))


if __name__ == "__main__":
    main()
