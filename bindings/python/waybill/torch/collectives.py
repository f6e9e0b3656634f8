# SPDX-License-Identifier: Apache-2.0
"""What the tracer makes of collective operations: which elements are this rank's, and which another rank has.

Weights do not travel while an export is recorded: their tensors have no memory, and each rank records what becomes of its own
elements. Tensors of integers, such as pickled names, do travel, so every rank of the group has to record at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.torch.tracer import Tracer, to_meta

_Model = Callable[..., None]


def _all_gather(tracer: Tracer, to: Sequence[Sequence[Any]], of: Sequence[Any], group: Any) -> None:
    for places, tensor in zip(to, of):
        for rank, place in enumerate(places):
            tracer.gathered(place, tensor, rank == group.rank())


def _all_gather_into(tracer: Tracer, to: Any, of: Any, group: Any) -> None:
    _all_gather(tracer, [to.view(group.size(), *of.shape).unbind()], [of], group)


def _broadcast(tracer: Tracer, tensors: Sequence[Any], group: Any, root: int) -> None:
    for tensor in tensors:
        if root != group.rank():
            tracer.gathered(tensor, tensor, False)


def models() -> dict[Any, Callable[..., Any]]:
    """Returns what stands for each collective operation, by torch's operation; nothing if torch has none."""
    if not torch.distributed.is_available():
        return {}
    c10d = torch.ops.c10d
    return {
        operation: _standing_for(operation, model)
        for operation, model in (
            (c10d.allgather_.default, _all_gather),
            (c10d._allgather_base_.default, _all_gather_into),
            (c10d.broadcast_.default, _broadcast),
        )
    }


def _standing_for(operation: Any, model: _Model) -> Callable[..., Any]:
    """Returns a function that tracks tensors by the first three arguments, and returns what the operation returns."""

    def stand_in(tracer: Tracer, *args: Any) -> Any:
        unboxed = [
            torch.distributed.ProcessGroup.unbox(argument)
            if isinstance(argument, torch.ScriptObject)
            else argument
            for argument in args[:3]
        ]
        model(tracer, *unboxed)
        return operation(*to_meta(args))

    return stand_in
