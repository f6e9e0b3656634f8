# SPDX-License-Identifier: Apache-2.0
"""The model of one rank of vLLM, on `meta`, by its real classes, without a GPU and without the other ranks."""

import contextlib
import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_USE_DEEP_GEMM="0",
)

import torch
import torch.distributed as dist
from checkpoints import config_of


def load_standins():
    """As what a GPU's process has loaded."""
    for name in ("libcudart.so.13", "libcuda.so.1"):
        library = Path(torch.__file__).parent / "lib" / name
        if library.exists():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def pretend_platform(gpu):
    """Lets vLLM choose as on an H100, or as on a processor: FP8 is loaded for GPUs only."""
    import vllm.platforms as platforms

    if not gpu:
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()
        return
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    facts = {
        "get_device_capability": DeviceCapability(9, 0),
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_total_memory": 80 << 30,
        "device_count": 8,
        "num_compute_units": 132,
        "get_cuda_runtime_major": 13,
        "is_integrated_gpu": False,
    }
    told = {
        name: classmethod(lambda cls, *args, fact=fact, **kwargs: fact)
        for name, fact in facts.items()
    }
    platforms._current_platform = type("PretendedH100", (NonNvmlCudaPlatform,), told)()
    properties = SimpleNamespace(
        major=9, minor=0, name=facts["get_device_name"], total_memory=80 << 30, warp_size=32,
        multi_processor_count=132, shared_memory_per_block_optin=232448,
    )  # fmt: skip
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    torch.cuda.get_device_properties = lambda *args, **kwargs: properties
    torch.cuda.current_device = lambda: 0
    torch.cuda.Stream = torch.cuda.Event = mock.MagicMock
    torch.cuda.current_stream = lambda *args, **kwargs: mock.MagicMock()


def be_alone(rank, world):
    """Groups of ranks that are not there: nobody is waited for."""
    import vllm.distributed.parallel_state as state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    new_group, make = dist.new_group, state.init_model_parallel_group
    dist.new_group = lambda ranks=None, **kwargs: new_group(ranks, backend="fake")
    state.in_the_same_node_as = lambda group, source_rank=0: [True] * dist.get_world_size(group)
    state.init_model_parallel_group = lambda *args, **kwargs: make(
        *args, **{**kwargs, "use_message_queue_broadcaster": False}
    )
    init = state.GroupCoordinator.__init__

    def without_communicator(self, *args, **kwargs):
        if len(args) > 3:
            return init(self, *args[:3], False, *args[4:], **kwargs)
        return init(self, *args, **{**kwargs, "use_device_communicator": False})

    state.GroupCoordinator.__init__ = without_communicator


@contextlib.contextmanager
def rank_of(
    name, tp, rank, *, experts_parallel=False, dtype=torch.bfloat16, gpu=False, device="meta"
):
    """Yields the model of one rank, on a device, in a process that has made none before."""
    load_standins()
    pretend_platform(gpu)
    be_alone(rank, tp)
    import tempfile

    import vllm.distributed.parallel_state as state
    from vllm.config import (
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        VllmConfig,
        set_current_vllm_config,
    )
    from vllm.model_executor.model_loader.utils import initialize_model

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config_of(name)))
        config = VllmConfig(
            model_config=ModelConfig(
                model=folder, tokenizer=folder, skip_tokenizer_init=True, enforce_eager=True,
                dtype=str(dtype).removeprefix("torch."),
            ),
            parallel_config=ParallelConfig(
                tensor_parallel_size=tp, enable_expert_parallel=experts_parallel,
                distributed_executor_backend="mp", disable_custom_all_reduce=True,
            ),
            device_config=DeviceConfig(device="cpu"),
        )  # fmt: skip
        with set_current_vllm_config(config):
            state.init_distributed_environment(
                world_size=tp, rank=rank, local_rank=0, backend="fake",
                distributed_init_method="fake://",
            )  # fmt: skip
            state.initialize_model_parallel(tp, backend="fake")
            torch.set_default_dtype(dtype)
            with torch.device(device):
                model = initialize_model(config)
            yield model
