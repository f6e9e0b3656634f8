# SPDX-License-Identifier: Apache-2.0
"""Runs a trainer's export over tensors on `meta`, and records which elements of which checkpoint tensors a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Union

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.dtypes import NAMES, dtype_number
from waybill.errors import FailedPrecondition, InvalidArgument, Unimplemented
from waybill.placements import boxes_of, is_dtensor
from waybill.recording import Recording, Route, Tensor
from waybill.strided import View
from waybill.torch.collectives import models
from waybill.torch.lineage import Buffer, Findings, follow
from waybill.torch.loading import (
    describe_targets,
    grouped,
    joined,
    loader_name,
    matches,
    named_ranges,
)
from waybill.torch.module import named_tensors
from waybill.torch.tracer import ItemWatch, Tracer, ValueRead, uncollected
from waybill.torch.twin import meta_twin, sharded_modules

Export = Callable[[Any], Union[Mapping[str, Any], Iterable[tuple[str, Any]]]]

_REMEDY = (
    "Waybill sends the elements of parameters as they are. Name the tensors in skip=, and lend what holds their elements "
    "with add()"
)


@uncollected()
def record_export(module: Any, export: Export, *, skip: Iterable[str] = ()) -> Recording:
    """Records which elements of the tensors that an export makes are in which places of a module's parameters.

    `export` runs once, on this thread, over a twin of the module without memory. It may gather shards from other ranks by
    torch.distributed's all_gather(), all_gather_into_tensor() and broadcast(): no element travels, and what another rank holds
    is in the recording of that rank. What the export sends beside weights, such as pickled names, does travel. So every rank
    of its groups has to record at the same time. A DTensor is a whole tensor for the export, and no rank needs to gather it.

    module  A torch module. For a list of modules, such as the stages that a rank of a pipeline holds, give
            torch.nn.ModuleList(stages).
    export  Called with the twin. It returns, or yields, names and tensors: the checkpoint as engines load it.
    skip    Names of exported tensors, or patterns as "*.expert_bias", that are left out. If there are any, parameters of which
            nothing is exported are left out as well, instead of refused: a skipped tensor may have been computed from them.

    Returns a recording whose targets are the module's parameters and floating-point buffers (of a DTensor its to_local()), and
    whose tensors are the exported ones: its parts() are those for Trainer.add(). Parameters that this rank exports nothing of are
    left out.

    Raises Unimplemented with all tensors that are no copies of parameters, each with the operation; FailedPrecondition if the
    export fails, or exports nothing of a parameter; and InvalidArgument if it exports a name with two shapes or dtypes. A name
    may come twice, as that of tied weights does which two stages of a pipeline hold.
    """
    for its in sharded_modules(module):
        its.reshard()  # FSDP2 may still have the parameters whole that it gathered for the last forward().
    twin = meta_twin(module)
    tracer = Tracer({})
    held = _hold(tracer, named_tensors(module), named_tensors(twin))
    tracer.collectives.update(models())
    collected = _Collected(tuple(skip))
    try:
        with torch.no_grad(), tracer, ItemWatch(tracer):
            for name, tensor in _items(export(twin)):
                collected.add(tracer, name, tensor)
    except ValueRead:
        pass  # It is among the refusals.
    except InvalidArgument:
        raise
    except Exception as error:
        after = f' at or after "{collected.last}"' if collected.last else ""
        raise FailedPrecondition(
            f"the export failed while it was recorded on meta tensors{after}: {type(error).__name__}: {error}"
        ) from error
    collected.check(tracer, export)
    filled = {route.target for route in collected.routes}
    parameters = dict(twin.named_parameters())
    lost = [name for name in tracer.sources if name in parameters and name not in filled]
    if lost and not collected.skipped:
        lines = "\n".join(f"  {line}: no element of it is exported" for line in named_ranges(lost))
        raise FailedPrecondition(f"{loader_name(export)} does not export all parameters:\n{lines}")
    return Recording(
        collected.tensors,
        {name: target for name, target in describe_targets(held).items() if name in filled},
        collected.routes,
        (),
    )


def _hold(tracer: Tracer, tensors: Mapping[str, Any], twins: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the tensors that this rank holds sources, and returns them on `meta`.

    The twin of a DTensor is the whole tensor. It has the elements of the boxes that lie in this rank's shard; other ranks have
    the others.
    """
    held = dict(twins)
    for name, tensor in tensors.items():
        if is_dtensor(tensor):
            local = tensor.to_local().detach()
            held[name] = torch.empty_strided(
                local.shape, local.stride(), dtype=local.dtype, device="meta"
            )
    tracer.add_held(held)
    for name, tensor in tensors.items():
        if is_dtensor(tensor):
            boxes = [
                (
                    tuple(slice(begin, end) for begin, end in box),
                    tuple(slice(i, i + end - begin) for (begin, end), i in zip(box, at)),
                )
                for box, at in boxes_of(name, tensor)
            ]
            whole = twins[name].detach()
            tracer.add_shards(name, whole, [(whole[to], held[name][of]) for to, of in boxes])
    return held


def _items(exported: Any) -> Iterator[tuple[str, Any]]:
    return iter(exported.items() if isinstance(exported, Mapping) else exported)


class _Collected:
    """What was found out about all exported tensors."""

    def __init__(self, skip: tuple[str, ...]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.routes: list[Route] = []
        self.skipped = False
        self.last = ""
        self._skip = skip
        self._refused: list[tuple[str, str]] = []

    def add(self, tracer: Tracer, name: str, tensor: Any) -> None:
        self.last = name
        if matches(name, self._skip):
            self.skipped = True
            return
        exported = Tensor(tuple(tensor.shape), NAMES[dtype_number(tensor.dtype)])
        if self.tensors.setdefault(name, exported) != exported:
            raise InvalidArgument(
                f'the export yields "{name}" twice: as {self.tensors[name]}, and as {exported}'
            )

        def fill(_: View, value: float) -> None:
            refuse(f"elements of it are set to {value}")

        def refuse(reason: str) -> None:
            if not self._refused or self._refused[-1] != (name, reason):
                self._refused.append((name, reason))

        def found(at: View, source: Buffer, of: View) -> None:
            if source.dtype != tensor.dtype:
                refuse(f'"{source.name}" is cast from {source.dtype} to {tensor.dtype}')
            else:
                self.routes.append(Route(source.name, of, name, at))

        follow(tracer.copied_from(tensor), Findings(found, fill, refuse))

    def check(self, tracer: Tracer, export: Export) -> None:
        """Raises Unimplemented with everything that was refused."""
        lines = [f"  {reason}" for reason in dict.fromkeys(tracer.refusals)]
        lines += grouped(self._refused)
        if lines:
            raise Unimplemented(
                f"{loader_name(export)} does more than copy:\n{joined(lines)}\n{_REMEDY}"
            )
