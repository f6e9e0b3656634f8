# SPDX-License-Identifier: Apache-2.0
"""Makes a copy of a module whose parameters have no memory."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.placements import is_dtensor


def meta_twin(module: Any) -> Any:
    """Returns a deep copy of a torch module with parameters and floating-point buffers on `meta`.

    What a loader does to the twin leaves the module as it is. Views of one storage, tied parameters and attributes of
    parameters (an engine's `weight_loader`) are as in the module. Other buffers, which loaders index by, are copied
    with their values to the CPU. No parameter is copied, and no tensor that is an attribute of one. Process groups cannot be
    copied, and are shared.

    A DTensor is a whole tensor in the twin, without placements. A module of FSDP2 is one of its own class there, which gathers
    nothing.
    """
    memo: dict[int, Any] = {}
    storages: dict[int, Any] = {}
    tensors = [*module.parameters(), *module.buffers()]
    made = []
    for tensor in tensors:
        if id(tensor) in memo:
            continue
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        kind = type(tensor)
        if is_dtensor(tensor):
            twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            kind = torch.nn.Parameter
        elif is_parameter or tensor.is_floating_point():
            twin = _on_meta(tensor, storages)
        else:
            twin = tensor.detach().to("cpu", copy=True)
        if is_parameter:
            twin = torch.Tensor._make_subclass(kind, twin, tensor.requires_grad)
        memo[id(tensor)] = twin
        made.append((tensor, twin))
        for beside in vars(tensor).values():  # Megatron keeps gradients there.
            if isinstance(beside, torch.Tensor) and beside.is_floating_point():
                memo.setdefault(id(beside), _on_meta(beside, storages))
    with _sharing_process_groups():
        for tensor, twin in made:
            twin.__dict__.update(copy.deepcopy(tensor.__dict__, memo))
        _copy_sharded(module, memo)
        return copy.deepcopy(module, memo)


def sharded_modules(module: Any) -> Iterator[Any]:
    """Yields the modules to which FSDP2's fully_shard() was applied."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if fsdp is not None:
        yield from (its for its in module.modules() if isinstance(its, fsdp))


def _copy_sharded(module: Any, memo: dict[int, Any]) -> None:
    """Copies modules of FSDP2, which copy.deepcopy() refuses to, as modules of the classes that they had before.

    The copies share the state of FSDP2, and no export or loader uses it.
    """
    made = []
    for its in sharded_modules(module):
        # fully_shard() makes a subclass of FSDPModule and of the class that the module had.
        before: Any = type(its).__mro__[2]
        twin = before.__new__(before)
        state = its._get_fsdp_state()
        memo.update({id(its): twin, id(state): state})
        made.append((its, twin))
    for its, twin in made:
        twin.__dict__.update(copy.deepcopy(its.__dict__, memo))


@contextmanager
def _sharing_process_groups() -> Iterator[None]:
    """Lets copy.deepcopy() share process groups, for which it raises a TypeError otherwise."""
    if not torch.distributed.is_available() or hasattr(
        torch.distributed.ProcessGroup, "__deepcopy__"
    ):
        yield
        return
    torch.distributed.ProcessGroup.__deepcopy__ = lambda group, memo: group
    try:
        yield
    finally:
        del torch.distributed.ProcessGroup.__deepcopy__


def _on_meta(tensor: Any, storages: dict[int, Any]) -> Any:
    """Returns a tensor on `meta` that is to the others what this one is to those of its storage."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in storages:
        room = storage.nbytes()
        storages[key] = torch.empty(room, dtype=torch.uint8, device="meta").untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="meta")
    return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
