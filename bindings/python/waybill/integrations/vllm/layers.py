# SPDX-License-Identifier: Apache-2.0
"""The two forms of a vLLM layer: the form that the loader fills, and the form with which the layer computes.

After loading, vLLM repacks some layers: quantised ones, experts, and on some CPUs linear ones. `load_weights()` fits only the
form before that. vLLM remembers that form on `meta` for its own reloading (model_loader/reload), and this module uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from vllm import device_allocator  # type: ignore[import-not-found, unused-ignore]
from vllm.model_executor.layers.attention import (  # type: ignore[import-not-found, unused-ignore]
    is_deferred_attention_layer,
)
from vllm.model_executor.layers.linear import (  # type: ignore[import-not-found, unused-ignore]
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import (  # type: ignore[import-not-found, unused-ignore]
    QuantizeMethodBase,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (  # type: ignore[import-not-found, unused-ignore]
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.model_loader.reload.layerwise import (  # type: ignore[import-not-found, unused-ignore]
    _copy_and_restore_kernel_tensors,
    get_layerwise_info,
)
from vllm.model_executor.model_loader.reload.meta import (  # type: ignore[import-not-found, unused-ignore]
    materialize_layer,
    restore_layer_on_meta,
    to_meta_tensor,
)
from vllm.model_executor.model_loader.reload.utils import (  # type: ignore[import-not-found, unused-ignore]
    get_layer_params_buffers,
    get_layer_tensors,
)
from vllm.platforms import (  # type: ignore[import-not-found, unused-ignore]
    current_platform,
)

# Methods that leave the weights in the loaded form on GPUs, and on CPUs for which vLLM has no packed form.
_PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


def is_repacked(layer: Any) -> bool:
    """Returns whether vLLM converts the layer's weights after loading."""
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase) or is_deferred_attention_layer(layer):
        return False
    if type(method) not in _PLAIN:
        return True
    if current_platform.is_cuda():
        return False
    # On CPUs the layer has a function that multiplies. It closes over the packed weight if there is one.
    multiply = getattr(layer, "cpu_linear", None)
    return multiply is None or getattr(multiply, "__closure__", None) is not None


def padded_parameters(model: Any) -> list[str]:
    """Returns the names of parameters of experts that vLLM has made larger than the checkpoint's, as its kernels need."""
    names = []
    for path, layer in model.named_modules():
        config = getattr(layer, "moe_config", None)
        if config is not None and (
            config.hidden_dim != config.hidden_dim_unpadded
            or config.intermediate_size_per_partition
            != config.intermediate_size_per_partition_unpadded
        ):
            names += [f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False)]
    return names


def _place(
    layer: Any, parameters: dict[str, Any], buffers: dict[str, Any], transient: set[str]
) -> None:
    for name in get_layer_tensors(layer):
        delattr(layer, name)
    for name, parameter in parameters.items():
        layer.register_parameter(name, parameter)
    for name, buffer in buffers.items():
        layer.register_buffer(name, buffer, persistent=name not in transient)


@contextmanager
def as_loaded(model: Any) -> Iterator[dict[str, Any]]:
    """Puts the model into the loaded form, on `meta`, for the duration of a `with` block.

    Yields the parameters and floating-point buffers of that form by name. The model must not compute meanwhile.
    """
    kept = []
    try:
        for layer in model.modules():
            transient = set(layer._non_persistent_buffers_set)
            kept.append((layer, *get_layer_params_buffers(layer), transient))
            restore_layer_on_meta(layer, get_layerwise_info(layer))
            for name, tensor in get_layer_tensors(layer).items():
                # vLLM does not move a few tensors to `meta`, for example e_score_correction_bias.
                if not tensor.is_meta and tensor.is_floating_point():
                    setattr(layer, name, to_meta_tensor(tensor))
        buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
        yield {**dict(model.named_parameters()), **buffers}
    finally:
        for entry in kept:
            _place(*entry)


def repack(layer: Any, loaded: dict[str, Any]) -> None:
    """Loads weights into a layer, and makes vLLM repack them into the memory with which the layer computes.

    loaded  The weights in the loaded form, by their names in the layer, on any device.

    It needs memory for one more copy of this layer on the layer's device.
    """
    info = get_layerwise_info(layer)
    info.kernel_tensors = get_layer_params_buffers(layer)
    info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
    restore_layer_on_meta(layer, info)
    materialize_layer(layer, info)
    for name, tensor in loaded.items():
        getattr(layer, name).data.copy_(tensor)
    if hasattr(layer, "_already_called_process_weights_after_loading"):
        del layer._already_called_process_weights_after_loading
    method = layer.quant_method
    method.process_weights_after_loading(layer)
    kernel = getattr(method, "moe_kernel", None)
    if kernel is not None and current_platform.is_cpu():
        # On CPUs vLLM packs experts the first time only.
        kernel.fused_experts.process_weights_after_loading(layer)
    if hasattr(layer, "update_param_tp_status"):
        layer.update_param_tp_status()
    _copy_and_restore_kernel_tensors(layer, info)
    info.reset()


def derive_attention(model: Any, dtype: Any) -> None:
    """Makes attention layers recompute what they derive from other layers' weights, such as MLA's parts of kv_b_proj."""
    for layer in model.modules():
        if is_deferred_attention_layer(layer):
            layer.process_weights_after_loading(dtype)


def find_asleep(model: Any) -> str | None:
    """Returns the name of a parameter whose memory vLLM has taken away in its sleep mode, or None if all have memory."""
    asleep = [
        (start, start + allocation.handle[1])
        for start, allocation in device_allocator.get_mem_allocator_instance().pointer_to_data.items()
        if allocation.is_asleep
    ]
    if asleep:
        for name, parameter in model.named_parameters():
            at = parameter.data_ptr()
            if any(start <= at < end for start, end in asleep):
                return str(name)
    return None


def bytes_to_receive(model: Any) -> int:
    """Returns about how much memory versions need that are received beside the model: once more for layers that are repacked."""
    repacked = [
        its for layer in model.modules() if is_repacked(layer) for its in layer.parameters(False)
    ]
    return sum(int(its.nbytes) for its in [*model.parameters(), *repacked])


def empty_like_loaded(tensor: Any, dtype: Any, device: Any = None) -> Any:
    """Returns memory for a parameter in the loaded form. On the host, it is pinned if vLLM runs on a GPU."""
    if device is not None:
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    pinned = current_platform.is_cuda()
    return torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=pinned)
