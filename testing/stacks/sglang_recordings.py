# SPDX-License-Identifier: Apache-2.0
"""Sends BF16 weights to FP8 models of SGLang, and compares every byte with loading the quantised checkpoint.

    python sglang_recordings.py            runs every case
    python sglang_recordings.py CASE...    runs the named cases

Each model is that of one rank, by SGLang's real classes, without a GPU and without the other ranks, in a process of its own. Waybill's
custom weight loader receives the weights; what they are compared with comes through SGLang's own load_weights(). The parameters are
compared in the form in which they are loaded: SGLang's FP8 kernels need a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import sglang_settings  # noqa: F401
from checkpoints import before_quantisation, checkpoint_of, config_of, quantise

# By name: the model, tensor parallelism, rank, expert parallelism.
CASES = {
    "moe": ("tiny-qwen3-moe-fp8", 1, 0, 1),
    "moe-tp2": ("tiny-qwen3-moe-fp8", 2, 1, 1),
    "moe-ep2": ("tiny-qwen3-moe-fp8", 2, 0, 2),
    "deepseek-tp2": ("tiny-deepseek-v3-fp8", 2, 1, 1),
}
PATIENCE = 60


def be_alone(rank, world):
    """Makes groups of ranks that are not there: nobody is waited for."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")
    import inspect

    import sglang.srt.distributed.parallel_state as state

    init = state.GroupCoordinator.__init__
    signature = inspect.signature(init)

    def without_communicators(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        given.arguments |= {name: False for name in given.arguments if name.startswith("use_")}
        init(*given.args, **given.kwargs)

    state.GroupCoordinator.__init__ = without_communicators


def make(name, folder, tp, rank, ep):
    """Returns the model of one rank, in host memory."""
    import torch
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    be_alone(rank, tp)
    (folder / "config.json").write_text(json.dumps(config_of(name)))
    arguments = ServerArgs(
        model_path=str(folder), skip_tokenizer_init=True, tp_size=tp, ep_size=ep, device="cpu",
        load_format="dummy", dtype="bfloat16", disable_cuda_graph=True,
        attention_backend="torch_native", disable_custom_all_reduce=True,
    )  # fmt: skip
    runtime_context.publish(
        arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=rank)
    )
    import sglang.srt.distributed.parallel_state as state
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader import loader

    state.init_distributed_environment(
        world_size=tp, rank=rank, local_rank=0, backend="fake", distributed_init_method="fake://"
    )
    state.initialize_model_parallel(backend="fake")
    initialize_dp_attention(server_args=arguments)
    initialize_moe_config()
    config, load_config = ModelConfig.from_server_args(arguments), LoadConfig()
    torch.set_default_dtype(config.dtype)
    quantisation = loader._get_quantization_config(config, load_config)
    return loader._initialize_model(config, load_config, quantisation)


def receive(model, weights):
    """Sends weights from a trainer to the model, through Waybill's custom weight loader."""
    import waybill
    from waybill.integrations.sglang import engine
    from waybill.integrations.sglang.commands import named_tensors_of

    def command(**told):
        engine.receive(model, named_tensors_of(told | {"deadline": PATIENCE}))

    alone = mock.patch.object(engine, "_place", lambda: engine.Place(0, 1, 0))
    with waybill.Controller(listen="127.0.0.1:0") as controller, alone:
        trainer = waybill.Trainer(controller.address, rank=0, world=1)
        for name, tensor in weights.items():
            trainer.add(name, tensor)
        job = {"controller": controller.address, "job": "", "token": None, "fabric": "auto"}
        join = threading.Thread(target=command, kwargs={"do": "join", "engine": "0", **job})
        join.start()
        trainer.join(PATIENCE)
        join.join()
        publish = trainer.publish_async(1, deadline=PATIENCE)
        command(do="update", version=1)
        publish.committed.wait(PATIENCE)
        trainer.close()
        engine._receivers[model].leave()


def compare(case, folder):
    """Ends the program unless every byte is that of SGLang's own load of the quantised checkpoint."""
    import torch

    os.environ["XDG_CACHE_HOME"] = str(folder)  # Recordings of other ranks are not read.
    name, tp, rank, ep = CASES[case]
    weights, named = before_quantisation(checkpoint_of(name))
    model = make(name, folder, tp, rank, ep)
    parameters = dict(model.named_parameters())

    def contents():
        return {
            name: parameter.detach().reshape(-1).view(torch.uint8).clone()
            for name, parameter in parameters.items()
            if parameter.numel()
        }

    def clear():
        for parameter in parameters.values():
            parameter.data.view(-1).view(torch.uint8).zero_()

    clear()
    model.load_weights(iter(quantise(weights, named).items()))
    wanted = contents()
    clear()
    receive(model, weights)
    found = contents()
    wrong = [name for name in wanted if not torch.equal(found[name], wanted[name])]
    if wrong:
        sys.exit(f"{case}: {len(wrong)} of {len(wanted)} parameters differ: {wrong[:5]}")
    scales = sum(name.endswith("scale_inv") for name in wanted)
    print(f"{case}: {len(wanted)} parameters, {scales} of them scales, byte for byte", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    cases = parser.parse_args().cases or [*CASES]
    if len(cases) > 1:
        for case in cases:
            subprocess.run([sys.executable, __file__, case], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(cases[0], Path(folder))


if __name__ == "__main__":
    main()
