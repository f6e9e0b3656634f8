# SPDX-License-Identifier: Apache-2.0
"""The trainer side: each trainer process is one Waybill trainer, and lends the tensors of its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, ClassVar

from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found, unused-ignore]
    ModuleSource,
    ParamMeta,
    Shard,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightSource,
)

from waybill.errors import InvalidArgument
from waybill.integrations.adapters import lend_adapter
from waybill.integrations.clients import clients_of
from waybill.integrations.distributed import rank_here, world_here
from waybill.integrations.sender import DRAFT, Sender, Sending, Switch, told_to_engines
from waybill.integrations.vllm.clients import client_of_one
from waybill.trainer import Trainer


@dataclass
class WaybillInit(TrainerInitInfo):  # type: ignore[misc, unused-ignore]
    """Names the job that this trainer joins.

    controller  Address and port of the controller; the addresses of several controllers are separated by commas.
    job, token, fabric
                As in waybill.Trainer. Rank 0 passes them on to the engines.
    draft       A torch module: the draft model with which the engines speculate, whose parameters have the names of its own
                checkpoint. Target and draft switch together. None: the engines keep their draft, unless `source` has
                it, as checkpoints with MTP layers do.
    adapter     The name under which engines serve a LoRA adapter. Only the adapter is sent then: the source is a ModuleSource
                of the model that peft.get_peft_model() returned. No request is stopped for it.
    images, changes
                As in waybill.Trainer; send_weights_async() needs one of them.
    deadline    In seconds, for joining and for each update.
    rank, world The rank of this trainer and the number of trainers. The default is torch.distributed's, else the
                environment's RANK and WORLD_SIZE, else 0 of 1.
    """

    backend: ClassVar[str] = "waybill"

    controller: str
    job: str = ""
    token: str | None = None
    fabric: str = "auto"
    draft: Any = None
    adapter: str | None = None
    images: bool = False
    changes: str = "never"
    deadline: float = 600.0
    rank: int = field(kw_only=True, default_factory=rank_here)
    world: int = field(kw_only=True, default_factory=world_here)


@dataclass
class ExportSource:
    """The weights that a trainer's own export makes of a module: of Megatron's shards, or of transformers' fused experts.

    module, export, skip  As for waybill.Trainer.add_exported(), which records the export instead of running it.
    """

    module: Any
    export: Callable[[Any], Any]
    skip: Sequence[str] = ()


class WaybillTrainer(TrainerWeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Sends a trainer's weights to engines. Create it with trainer_init() on every trainer rank."""

    init_info_cls = WaybillInit

    @classmethod
    def trainer_init(
        cls, init_info: WaybillInit, *, client: Any, source: Any = None
    ) -> WaybillTrainer:
        """Joins the job, and on rank 0 also makes the engines of `client` join it.

        client  An LLM, HTTPClient(address), or another object with vLLM's four calls; a list of them for several engines.
                Only rank 0 uses it.
        source  ModuleSource(model) lends the model's tensors, including FSDP2's shards, without a copy; they must not move.
                ExportSource(model, export) does the same under the names that the trainer's export gives.
                From any other WeightSource each tensor is copied once per version.
        """
        if source is None:
            raise InvalidArgument("trainer_init: source is None: pass ModuleSource(model)")
        return cls(
            init_info, clients_of(client, client_of_one) if init_info.is_sender else None, source
        )

    def __init__(
        self, init_info: WaybillInit, client: Any, source: WeightSource | ExportSource
    ) -> None:
        super().__init__(
            client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank
        )
        self._copies: dict[str, Any] = {}
        trainer = Trainer(
            init_info.controller,
            job=init_info.job,
            token=init_info.token,
            rank=init_info.rank,
            world=init_info.world,
            fabric=init_info.fabric,
            images=init_info.images,
            changes=init_info.changes,
        )
        try:
            adapter = None
            if init_info.adapter is None:
                self._lend(trainer, source)
            elif isinstance(source, ModuleSource):
                adapter = lend_adapter(trainer, source._module)
            else:
                raise InvalidArgument("trainer_init: an adapter is sent from a ModuleSource")
            if init_info.draft is not None:
                trainer.add_module(init_info.draft, DRAFT)
        except BaseException:
            trainer.close()
            raise
        told = told_to_engines(
            init_info.controller,
            init_info.deadline,
            job=init_info.job,
            token=init_info.token,
            fabric=init_info.fabric,
            adapter=adapter,
        )
        self._sender = Sender(trainer, client, told, init_info.deadline, init_info.adapter)

    def _lend(self, trainer: Trainer, source: WeightSource | ExportSource) -> None:
        if isinstance(source, ModuleSource):
            trainer.add_module(source._module)
            return
        if isinstance(source, ExportSource):
            trainer.add_exported(source.module, source.export, skip=source.skip)
            return
        metas = {meta.name: meta for meta in source.metadata}
        for name, tensor in _pieces(source):
            meta = metas[name]
            copy = self._copies[name] = tensor.detach().clone()
            local = source.implements_iter_local()
            box = _box(meta, self.rank) if local else [(0, n) for n in meta.shape]
            trainer.add(name, copy, box=box, shape=meta.shape)

    def send_weights(self, version: int | None = None) -> int:
        """Makes all engines serve the present weights, and returns their version. Call it on every trainer rank.

        The weights must not change during the call. Engines generate with the old weights while the new ones arrive, and
        stand still while they switch; `last_switch` says for how long. If it raises, the engines serve the old weights,
        but for those that the error names: these stay paused until an update succeeds, because they may have a part of
        the new weights.

        version  Must be greater than every version before. None: the previous version plus one.
        """
        self._copy_pieces()
        return self._sender.send(version)

    def send_weights_async(self, version: int | None = None) -> Sending:
        """As send_weights(), but returns once the weights are copied: they may change while engines receive them and switch.

        Needs `images` or `changes`. The next send waits until this one is over, and raises what went wrong if nobody has waited.
        """
        self._copy_pieces()
        return self._sender.send_async(version)

    def _copy_pieces(self) -> None:
        for name, tensor in _pieces(self.source) if self._copies else ():
            self._copies[name].copy_(tensor)

    def compare_engines(self) -> int:
        """Compares the parameters with which the engines compute: see Sender.compare_engines()."""
        return self._sender.compare_engines()

    @property
    def last_switch(self) -> Switch | None:
        """How the engines switched to the last version; None before it, and on the ranks that control no engine."""
        return self._sender.last_switch

    @property
    def lora_request(self) -> Any:
        """What LLM.generate() is given to use the adapter that was sent last, if the client is an LLM in this process."""
        requests = (getattr(client, "lora_request", None) for client in self.client or [])
        return next((request for request in requests if request is not None), None)

    def shutdown(self) -> None:
        """Leaves the job."""
        self._sender.close()


def _pieces(source: Any) -> Any:
    return source.iter_local() if source.implements_iter_local() else source.iter_full()


def _box(meta: ParamMeta, rank: int) -> list[tuple[int, int]]:
    """Returns the box of a tensor that a rank owns, cut as torch.chunk() does, the outermost axis first."""
    box = [(0, n) for n in meta.shape]
    if meta.owners is None or meta.placements is None:
        return box
    place = meta.owners.index(rank)
    for axis, placement in enumerate(meta.placements):
        count = meta.mesh_shape[axis]
        index = place // prod(meta.mesh_shape[axis + 1 :]) % count
        if isinstance(placement, Shard):
            begin, end = box[placement.dim]
            size = ceil((end - begin) / count)
            first = min(begin + index * size, end)
            box[placement.dim] = (first, min(first + size, end))
    return box
