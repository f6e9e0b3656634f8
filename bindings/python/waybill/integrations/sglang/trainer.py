# SPDX-License-Identifier: Apache-2.0
"""The trainer side: each trainer process is one Waybill trainer, and lends the tensors of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waybill.integrations.adapters import lend_adapter
from waybill.integrations.clients import clients_of
from waybill.integrations.distributed import rank_here, world_here
from waybill.integrations.sender import Sender, Sending, Switch, told_to_engines
from waybill.integrations.sglang.clients import client_of_one
from waybill.trainer import Trainer


class WeightSender:
    """Sends a trainer's weights to SGLang engines. Every trainer rank has one.

    controller  Address and port of the controller; the addresses of several controllers are separated by commas.
    model       A torch module whose parameters have the names of the checkpoint. Its tensors, including FSDP2's shards, are
                lent without a copy and must not move.
    engines     An address such as "http://engine:30000", an HTTPClient, an sglang.Engine, or a list of these. Only rank 0
                uses it.
    export      The trainer's own export, if the names of the model's parameters are not those of the checkpoint. It is
                recorded instead of run, as by waybill.Trainer.add_exported().
    adapter     The name of a LoRA adapter. Only the adapter is sent then, and `model` is what peft.get_peft_model() returned. The
                engines serve each version under a name of its own, `served_adapter`. No request is stopped for it.
    job, token, fabric
                As in waybill.Trainer. Rank 0 passes them on to the engines.
    images, changes
                As in waybill.Trainer; send_weights_async() needs one of them.
    deadline    In seconds, for joining and for each update.
    rank, world The rank of this trainer and the number of trainers. None: torch.distributed's, else the environment's RANK
                and WORLD_SIZE, else 0 of 1.

    The constructor returns when all trainers and engines have joined the job.
    """

    def __init__(
        self,
        controller: str,
        model: Any,
        engines: Any,
        *,
        export: Callable[[Any], Any] | None = None,
        adapter: str | None = None,
        job: str = "",
        token: str | None = None,
        fabric: str = "auto",
        images: bool = False,
        changes: str = "never",
        deadline: float = 600.0,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        rank = rank_here() if rank is None else rank
        world = world_here() if world is None else world
        trainer = Trainer(
            controller,
            job=job,
            token=token,
            rank=rank,
            world=world,
            fabric=fabric,
            images=images,
            changes=changes,
        )
        config = None
        try:
            if adapter is not None:
                config = lend_adapter(trainer, model)
            elif export is None:
                trainer.add_module(model)
            else:
                trainer.add_exported(model, export)
        except BaseException:
            trainer.close()
            raise
        told = told_to_engines(
            controller, deadline, job=job, token=token, fabric=fabric, adapter=config
        )
        clients = clients_of(engines, client_of_one) if rank == 0 else None
        self._sender = Sender(trainer, clients, told, deadline, adapter)
        self._adapter = adapter
        self._version = 0

    def send_weights(self, version: int | None = None) -> int:
        """Makes all engines serve the present weights, and returns their version. Call it on every trainer rank.

        The weights must not change during the call. Engines generate with the old weights while the new ones arrive, and
        stand still while they switch; `last_switch` says for how long. If it raises, the engines serve the old weights,
        but for those that the error names: these stay paused until an update succeeds, because they may have a part of
        the new weights.

        version  Must be greater than every version before. None: the previous version plus one.
        """
        self._version = self._sender.send(version)
        return self._version

    def send_weights_async(self, version: int | None = None) -> Sending:
        """As send_weights(), but returns once the weights are copied: they may change while engines receive them and switch.

        Needs `images` or `changes`. The next send waits until this one is over, and raises what went wrong if nobody has waited.
        """
        sending = self._sender.send_async(version)
        self._version = sending.version
        return sending

    @property
    def served_adapter(self) -> str:
        """The name under which engines serve the adapter that was sent last. They keep the version before it, too."""
        return f"{self._adapter}-{self._version}"

    def compare_engines(self) -> int:
        """Compares the parameters with which the engines compute: see Sender.compare_engines()."""
        return self._sender.compare_engines()

    @property
    def last_switch(self) -> Switch | None:
        """How the engines switched to the last version; None before it, and on the ranks that control no engine."""
        return self._sender.last_switch

    def close(self) -> None:
        """Leaves the job. The engines keep their weights."""
        self._sender.close()
