# SPDX-License-Identifier: Apache-2.0
"""Records the loader of a module on a twin of the module."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from waybill.recording import Recording
from waybill.torch.loading import Load, record
from waybill.torch.twin import meta_twin


def named_tensors(module: Any) -> dict[str, Any]:
    """Returns the parameters and the floating-point buffers of a module, which a loader may fill."""
    buffers = {
        name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()
    }
    return {**dict(module.named_parameters()), **buffers}


def _bound_to(twin: Any, module: Any, load_weights: Callable[..., object]) -> Load:
    """Returns the loader of the twin that does what a loader does to the module."""
    if getattr(load_weights, "__self__", None) is module:
        function = load_weights.__func__  # type: ignore[attr-defined]
        return types.MethodType(function, twin)

    @functools.wraps(load_weights)
    def load(items: Iterator[tuple[str, Any]]) -> object:
        return load_weights(twin, items)

    return load


def record_module(
    module: Any,
    load_weights: Callable[..., object],
    tensors: Mapping[str, Any],
    *,
    optional: Iterable[str],
    depends_on: Mapping[str, object] | None,
    **options: Any,
) -> Recording:
    """Records a loader of a module, as Worker.add_loaded() does. Buffers that it does not fill are left out."""
    if depends_on is not None:
        devices = sorted({tensor.device.type for tensor in named_tensors(module).values()})
        depends_on = {"waybill.devices": devices, **depends_on}
    twin = meta_twin(module)
    parameters = dict(twin.named_parameters())
    targets = named_tensors(twin)
    buffers = [name for name in targets if name not in parameters]
    load = _bound_to(twin, module, load_weights)
    optional = [*optional, *buffers]
    return record(load, tensors, targets, optional=optional, depends_on=depends_on, **options)
