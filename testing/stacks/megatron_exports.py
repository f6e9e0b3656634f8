# SPDX-License-Identifier: Apache-2.0
"""Tests Megatron as a trainer: the published Megatron-Core and mbridge, whose shards are lent as tensors of the checkpoint.

    python megatron_exports.py            runs every case
    python megatron_exports.py CASE...    runs the named cases

Each case has one process for each trainer rank. mbridge loads a checkpoint of numbered elements into them, so that each element
of each parameter says where it comes from. Its export is recorded on each rank, and must say the same. Then all ranks publish
two versions, and a worker compares every element with the checkpoint.

Megatron-Core runs without a GPU and without Transformer Engine here. mbridge knows the names of Transformer Engine's modules only, so
Bridge adds those that Megatron-Core's own modules name differently.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

from checkpoints import as_module, checkpoint_of, config_of

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bindings" / "python" / "testing"))

# By name: the model, and the sizes of tensor, pipeline and expert parallelism.
CASES = {
    "qwen3": ("tiny-qwen3", 1, 1, 1),
    "qwen3-tp2": ("tiny-qwen3", 2, 1, 1),
    "qwen3-pp2": ("tiny-qwen3", 1, 2, 1),
    "qwen3-tp2-pp2": ("tiny-qwen3", 2, 2, 1),
    "llama-tp4": ("tiny-llama", 4, 1, 1),
    "moe": ("tiny-qwen3-moe", 1, 1, 1),
    "moe-ep2": ("tiny-qwen3-moe", 1, 1, 2),
    "moe-ep4": ("tiny-qwen3-moe", 1, 1, 4),
    "moe-tp2-ep2": ("tiny-qwen3-moe", 2, 1, 2),
    "moe-tp2-pp2-ep2": ("tiny-qwen3-moe", 2, 2, 2),
    "deepseek": ("tiny-deepseek-v3-bf16", 1, 1, 1),
    "deepseek-tp2-ep2": ("tiny-deepseek-v3-bf16", 2, 1, 2),
}
# Megatron pads the vocabulary of 1000 to 1024.
DIVISIBLE_BY = 64
PATIENCE = 180


def world_of(tp, pp, ep):
    """Returns how many trainer ranks there are."""
    return max(tp, ep) * pp


def checkpoint(model):
    """Returns the tensors of a checkpoint, with the elements numbered from 1 over all of them."""
    from numbered_elements import numbered

    return numbered({name: shape for name, (shape, _) in checkpoint_of(model).items()})


def without_gpu():
    """Lets mbridge make models on the processor."""
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.Stream = mock.MagicMock
    from megatron.core.transformer import multi_latent_attention

    # Megatron-Core asks whether a module is one of Transformer Engine's, which is not here.
    multi_latent_attention.TELinear = type("TELinear", (), {})
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda what, *_: what


def bridge_of(model, folder, dtype):
    """Returns mbridge's bridge for Megatron-Core's own modules."""
    from mbridge.core.bridge import _MODEL_REGISTRY
    from mbridge.core.safetensor_io import SafeTensorIO
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.identity_op import IdentityOp
    from transformers import AutoConfig

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(model)))
    config = AutoConfig.from_pretrained(folder)
    config.rope_theta = config_of(model)["rope_theta"]  # transformers 5 has it in rope_parameters.
    published = _MODEL_REGISTRY[config.model_type]

    has_mla = "kv_lora_rank" in config_of(model)
    mla = {
        f"self_attention.{name}_layernorm.weight": [
            f"model.layers.{{layer_number}}.self_attn.{name}_a_layernorm.weight"
        ]
        for name in ("q", "kv")
    }

    class Bridge(published):
        _ATTENTION_MAPPING = {
            **published._ATTENTION_MAPPING,
            **(mla if has_mla else {}),
        }
        _OTHER_MAPPING = {
            **published._OTHER_MAPPING,
            "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"],
        }
        _MLP_MAPPING = {
            **published._MLP_MAPPING,
            "pre_mlp_layernorm": ["model.layers.{layer_number}.post_attention_layernorm.weight"],
        }

        def _build_base_config(self, max_position_embeddings=None, **kwargs):
            # mbridge 0.15.1 passes it for MLA, and Megatron-Core 0.16.1 does not have it any more.
            return super()._build_base_config(**kwargs)

        def _get_safetensor_io(self, weights_path):
            return SafeTensorIO(weights_path)  # mbridge's own for DeepSeek-V3 takes BF16 only.

        def _get_transformer_layer_spec(self, vp_stage=None):
            self.has_vp_stage = True
            spec = get_gpt_decoder_block_spec(
                self.config, False, normalization="RMSNorm", vp_stage=vp_stage
            )
            for layer in spec.layer_specs:  # The part without weights does not exist for MLA.
                layer.submodules.self_attention.submodules.core_attention = IdentityOp
            return spec

    # mbridge pads no vocabulary of DeepSeek-V3.
    padded = None if has_mla else DIVISIBLE_BY
    bridge = Bridge(config, dtype, make_vocab_size_divisible_by=padded)
    # Megatron-Core's own norms do without these.
    bridge.set_extra_args(sequence_parallel=False, persist_layer_norm=False)
    bridge.set_extra_args(use_cpu_initialization=True)
    if {"num_experts", "n_routed_experts"} & config_of(model).keys():
        bridge.set_extra_args(moe_grouped_gemm=False)
    return bridge


def name_experts(model, **_):
    """Gives experts the names of Transformer Engine's grouped modules: linear_fc1.weight3 for local_experts.3.linear_fc1.weight."""
    import torch

    for layer in model.decoder.layers:
        if not hasattr(layer.mlp, "experts"):
            continue
        grouped = torch.nn.Module()
        for name in ("linear_fc1", "linear_fc2"):
            grouped.add_module(name, torch.nn.Module())
            for number, expert in enumerate(layer.mlp.experts.local_experts):
                weight = getattr(expert, name).weight
                getattr(grouped, name).register_parameter(f"weight{number}", weight)
        layer.mlp.experts = grouped


class Rank:
    """Megatron's module of one trainer rank, in this process, without weights yet.

    sizes  Of tensor, pipeline and expert parallelism.
    """

    def __init__(self, model, sizes, rank, folder, dtype):
        import torch
        import torch.distributed as dist
        from mbridge.core.util import unwrap_model
        from megatron.core import parallel_state

        without_gpu()
        tp, pp, ep = sizes
        self.model, self.rank, self.world = model, rank, world_of(*sizes)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=self.world
        )
        parallel_state.initialize_model_parallel(
            tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1
        )
        self.bridge = bridge_of(model, folder / f"config{rank}", dtype)
        [wrapped] = self.bridge.get_model(
            bf16=dtype is torch.bfloat16,
            wrap_with_ddp=True,
            post_model_creation_callbacks=[name_experts],
        )
        self.module = unwrap_model(wrapped)  # Its parameters lie in Megatron's flat buffers.

    def load(self, folder):
        """Loads a checkpoint. Every rank has to call it at the same time."""
        self.bridge.load_weights([self.module], str(folder))

    def export(self, twin):
        """Makes the tensors of the checkpoint of a twin of the module."""
        return self.bridge.export_weights([twin])


class NumberedRank(Rank):
    """A trainer rank that has loaded the checkpoint of numbered elements."""

    def __init__(self, case, rank, folder):
        import torch
        from waybill.torch.module import named_tensors

        model, *sizes = CASES[case]
        super().__init__(model, sizes, rank, folder, torch.float32)
        self.load(folder / "checkpoint")
        # Buffers too: an expert's bias is one.
        self.first = {name: t.detach().clone() for name, t in named_tensors(self.module).items()}

    def lend(self, controller):
        """Joins a job with what the export says, and compares that with where mbridge has loaded each element from."""
        import waybill
        from numbered_elements import UNTOUCHED, replay

        self.trainer = waybill.Trainer(controller, rank=self.rank, world=self.world)
        recording = self.trainer.add_exported(self.module, self.export)
        filled = replay(recording, checkpoint(self.model))
        missing = dict(self.module.named_parameters()).keys() - filled.keys()
        if missing:
            sys.exit(f"rank {self.rank}: nothing of {sorted(missing)[:5]} is lent")
        elements = 0
        for name in filled:
            loaded = self.first[name]
            padding = loaded == 0  # Elements of the checkpoint are numbered from 1.
            wrong = (filled[name] != loaded.masked_fill(padding, UNTOUCHED)).sum()
            if wrong:
                sys.exit(f"rank {self.rank}: {name}: {wrong} elements are lent as others")
            elements += loaded.numel() - int(padding.sum())
        print(f"rank {self.rank}: {elements} elements of {len(filled)} tensors", flush=True)
        self.trainer.join(PATIENCE)

    def publish(self, version):
        """Publishes the checkpoint times the version."""
        import torch
        from waybill.torch.module import named_tensors

        with torch.no_grad():
            for name, tensor in named_tensors(self.module).items():
                tensor.copy_(self.first[name] * version)
        self.trainer.publish(version, deadline=PATIENCE).committed.wait(PATIENCE)


def run(case, folder):
    """Runs one case: its trainers in processes of their own, and a worker here."""
    import torch
    import waybill
    from safetensors.torch import save_file

    tensors = checkpoint(CASES[case][0])
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text(json.dumps(config_of(CASES[case][0])))
    save_file(tensors, folder / "checkpoint" / "model.safetensors")
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        command = [sys.executable, __file__, case, "--controller", controller.address]
        trainers = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--folder", str(folder)],
                stdin=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_of(*CASES[case][1:]))
        ]
        worker = waybill.Worker(controller.address, rank=0, world=1, mode="in-place", ask=())
        shown = as_module({name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
        for name, parameter in shown.named_parameters():
            worker.add(name, parameter.data)
        worker.join(PATIENCE)
        for version in (1, 2):
            for trainer in trainers:
                trainer.stdin.write(f"{version}\n")
                trainer.stdin.flush()
            worker.await_version(version, PATIENCE)
            wrong = [
                name
                for name, tensor in tensors.items()
                if not torch.equal(shown.get_parameter(name), tensor * version)
            ]
            if wrong:
                sys.exit(f"{case}, version {version}: {len(wrong)} tensors differ: {wrong[:5]}")
        worker.close()
        for trainer in trainers:
            trainer.stdin.close()
        if any([trainer.wait(PATIENCE) for trainer in trainers]):
            sys.exit(f"{case}: a trainer failed")
    print(f"{case}: two versions of {len(tensors)} tensors, every element", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    for hidden in ("--controller", "--rank", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    cases = given.cases or [*CASES]
    warnings.simplefilter("ignore")
    if given.rank:
        rank = NumberedRank(cases[0], int(given.rank), Path(given.folder))
        rank.lend(given.controller)
        for line in sys.stdin:
            rank.publish(int(line))
        rank.trainer.close()
        return
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            run(case, Path(folder))


if __name__ == "__main__":
    main()
