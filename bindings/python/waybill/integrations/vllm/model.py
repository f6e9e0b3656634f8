# SPDX-License-Identifier: Apache-2.0
"""One model of a vLLM engine, which receives versions: the target, or the draft of speculative decoding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import vllm  # type: ignore[import-not-found, unused-ignore]

from waybill.dtypes import FRAMEWORK_NAMES, NAMES, dtype_number
from waybill.errors import Unimplemented
from waybill.integrations import fp8_blocks
from waybill.integrations.vllm import layers
from waybill.parts import Padding, Part
from waybill.recording import Recording
from waybill.torch import record
from waybill.worker import Worker

# The casts that Waybill does while it sends a tensor.
CASTS = {("F32", "BF16"), ("F32", "F16"), ("BF16", "F32"), ("F16", "F32")}
# Parameters that vLLM computes itself.
COMPUTED = ("*.k_scale", "*.v_scale", "*.q_scale", "*.prob_scale")


class ReceivingModel:
    """Records the model's own loader, declares what it fills to a worker, and completes what has been received.

    prefix  Is put before the names of its parameters at the worker.
    others  Another model of the engine, which receives what both have, as a draft has the target's embeddings.
    """

    def __init__(self, model: Any, vllm_config: Any, prefix: str = "", others: Any = None) -> None:
        self.model = model
        self._config = vllm_config
        self._prefix, self._of = prefix, ""
        self._others = set() if others is None else {id(its) for its in others.parameters()}
        self._tensors: fp8_blocks.Tensors = {}
        self._targets: dict[str, Any] = {}  # The parameters in the form in which they are loaded.
        self._recording: Recording
        self._quantised: Collection[str] = ()
        # Memory that receives the weights of the layers that vLLM repacks: by layer, then by parameter.
        self._loaded: dict[Any, dict[str, Any]] = {}
        # Pairs of a parameter and the memory that receives it in the trainers' dtype.
        self._cast: list[tuple[Any, Any]] = []
        # Layers that share a parameter with another layer, for example a tied lm_head.
        self._tied: list[Any] = []
        self.copied_bytes = 0  # Bytes that a switch copies out of Waybill's buffers,
        self.again_bytes = 0  # and those of them that it then casts or repacks.

    def record(self, tensors: fp8_blocks.Tensors, of: str = "") -> None:
        """Records what the model's loader fills.

        tensors  What the loader is given.
        of       Is put before their names in the job.
        """
        named = list(self.model.named_parameters(remove_duplicate=False))
        parameters = dict(self.model.named_parameters())
        tied = [name for name, _ in named if name not in parameters]
        elsewhere = {name for name, parameter in named if id(parameter) in self._others}
        self._tied = [
            self.model.get_submodule(name.rpartition(".")[0])
            for name in tied
            if name not in elsewhere
        ]
        self._tensors, self._of = tensors, of
        with layers.as_loaded(self.model) as self._targets:
            self._recording, self._quantised = fp8_blocks.record_for_engine(
                getattr(self._config.quant_config, "weight_block_size", None),
                lambda its, optional: self._record(its, [*COMPUTED, *tied, *elsewhere], optional),
                tensors,
                self._targets,
            )

    def _record(
        self,
        tensors: fp8_blocks.Tensors,
        skip: list[str],
        optional: Collection[str],
    ) -> Recording:
        parameters = dict(self.model.named_parameters())
        parallel = self._config.parallel_config
        return record(
            self.model.load_weights,
            tensors,
            self._targets,
            optional=[*optional, *(name for name in self._targets if name not in parameters)],
            skip=skip,
            padded=layers.padded_parameters(self.model),
            cache=True,
            depends_on={
                "vllm": vllm.__version__,
                "config": self._config.compute_hash(),
                "model": self._prefix,
                "rank": parallel.rank,
                "data_parallel": parallel.data_parallel_index,
            },
        )

    def add(self, worker: Worker, device: Any = None) -> None:
        """Adds what was recorded to a worker, which has not joined yet.

        device  Where memory is allocated for what is cast or repacked; None: on the host.
        """
        live = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        described = self._recording.tensors()
        for name, recorded in self._recording.parts().items():
            path, _, leaf = name.rpartition(".")
            layer, target, now = self.model.get_submodule(path), self._targets[name], live.get(name)
            sources = {
                described[part.tensor].dtype for part in recorded if not isinstance(part, Padding)
            }
            parts = fp8_blocks.parts_on_the_way(recorded, self._tensors, self._quantised)
            for part in parts:
                if isinstance(part, Part):
                    part.tensor = self._of + part.tensor
            dtype = _received_as(name, sources, NAMES[dtype_number(target.dtype)])
            repacked = layers.is_repacked(layer)
            if not repacked and (now is None or not _alike(now, target)):
                raise Unimplemented(
                    f'"{name}": vLLM replaced this parameter of a {type(layer).__name__} after loading, by a step that '
                    "cannot be repeated, so the layer cannot be updated"
                )
            self.copied_bytes += target.numel() * dtype.itemsize
            if not repacked and dtype == target.dtype:
                worker.add(self._prefix + name, now, parts=parts)
                worker._watch_owner(self._prefix + name, self.model, name)
                continue
            self.again_bytes += target.numel() * dtype.itemsize
            received = layers.empty_like_loaded(target, dtype, device)
            worker.add(self._prefix + name, received, parts=parts)
            if repacked:
                self._loaded.setdefault(layer, {})[leaf] = received
            else:
                self._cast.append((now, received))

    def complete(self, dtype: Any) -> None:
        """Casts and repacks what was received in another form. If that fails, the model is a mixture of two versions.

        dtype  The dtype in which the model computes.
        """
        for parameter, received in self._cast:
            parameter.data.copy_(received)
        for layer, loaded in self._loaded.items():
            layers.repack(layer, loaded)
        for layer in filter(layers.is_repacked, self._tied):
            layer.quant_method.process_weights_after_loading(layer)
        layers.derive_attention(self.model, dtype)


def _received_as(name: str, sources: set[str], wanted: str) -> Any:
    """Returns the torch dtype in which a parameter is received.

    sources  The dtypes of the trainers' tensors that go into the parameter.
    wanted   The parameter's dtype. It is used if Waybill can cast the trainers' tensors to it.
    """
    if all(source == wanted or (source, wanted) in CASTS for source in sources):
        return _torch_dtype(wanted)
    if len(sources) == 1 and next(iter(sources)) in ("BF16", "F16"):
        return _torch_dtype(next(iter(sources)))
    raise Unimplemented(
        f'"{name}" has dtype {wanted}, and the trainers publish its tensors as {", ".join(sorted(sources))}: Waybill '
        "casts between F32 and BF16 or F16 only"
    )


def _torch_dtype(name: str) -> Any:
    return getattr(torch, FRAMEWORK_NAMES[name])


def _alike(now: Any, target: Any) -> bool:
    return (now.shape, now.stride(), now.dtype) == (target.shape, target.stride(), target.dtype)
