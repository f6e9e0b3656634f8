# SPDX-License-Identifier: Apache-2.0
"""Connects slime's Megatron backend to Waybill: a weight updater beside slime's own ones.

In the process of each trainer, before slime's actor initialises:

    import waybill.integrations.slime

    waybill.integrations.slime.install()

slime's SGLang engines are launched with --sglang-custom-weight-loader waybill.integrations.sglang.receive, and the environment of
the trainers names the job's controller: WAYBILL_CONTROLLER=HOST:PORT, and WAYBILL_TOKEN.

It is written against slime 624b824a8, and tested on stand-ins for slime, Megatron and Ray. It was not run on Megatron yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from megatron.core import mpu  # type: ignore[import-not-found, import-untyped, unused-ignore]
from slime.backends.megatron_utils.update_weight.update_weight_from_distributed import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    UpdateWeightFromDistributed,
)
from slime.utils.distributed_utils import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    get_gloo_group,
)

from waybill.errors import InvalidArgument
from waybill.integrations.sender import Sender, told_to_engines
from waybill.integrations.sglang.clients import HTTPClient
from waybill.trainer import Trainer


class UpdateWeightFromWaybill(UpdateWeightFromDistributed):  # type: ignore[misc, unused-ignore]
    """Sends the weights of each pipeline stage from its first rank, which gathers them as slime's own updater does.

    That rank keeps a copy of the stage's weights in the form of Hugging Face, which Waybill sends while all ranks wait.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._copies: dict[str, Any] = {}
        self._sender: Sender | None = None
        self._is_pp_src_rank = False

    def connect_rollout_engines(
        self,
        rollout_engines: Sequence[Any],
        rollout_engine_lock: Any,
        engine_gpu_counts: Sequence[int] | None = None,
        engine_gpu_offsets: Sequence[int] | None = None,
        engine_parallel_configs: Sequence[Any] | None = None,
    ) -> None:
        """Notes the engines. They join a job with the next update."""
        self.disconnect_rollout_engines()
        self.rollout_engines = rollout_engines
        self._is_pp_src_rank = (
            mpu.get_data_parallel_rank(with_context_parallel=True) == 0
            and mpu.get_tensor_model_parallel_rank() == 0
        )

    def disconnect_rollout_engines(self) -> None:
        """Leaves the job. The engines keep their weights."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    @torch.no_grad()  # type: ignore[untyped-decorator, misc, unused-ignore]
    def update_weights(self) -> None:
        """Gathers the weights, and makes all engines serve them. If it raises, the engines serve the old weights."""
        self._gather()
        try:
            if self._is_pp_src_rank:
                if self._sender is None:
                    self._sender = self._join()
                self.weight_version = self._sender.send()
        finally:
            dist.barrier(group=get_gloo_group())

    def _gather(self) -> None:
        for chunks in (self._iter_non_expert_chunks(), self._iter_expert_chunks()):
            for chunk in chunks:
                for name, tensor in chunk:
                    if name in self._copies:
                        self._copies[name].copy_(tensor)
                    else:
                        self._copies[name] = tensor.detach().clone(
                            memory_format=torch.contiguous_format
                        )
            dist.barrier(group=get_gloo_group())

    def _join(self) -> Sender:
        controller = os.environ.get("WAYBILL_CONTROLLER", "")
        if not controller:
            raise InvalidArgument(
                "update weights: WAYBILL_CONTROLLER is not set in the trainers' environment: give it the address of "
                "`waybill controller`"
            )
        told = told_to_engines(controller, 600.0, token=os.environ.get("WAYBILL_TOKEN"))
        trainer = Trainer(
            controller,
            token=told["token"],
            rank=mpu.get_pipeline_model_parallel_rank(),
            world=mpu.get_pipeline_model_parallel_world_size(),
        )
        try:
            for name, copy in self._copies.items():
                trainer.add(name, copy)
        except BaseException:
            trainer.close()
            raise
        return Sender(trainer, self._clients() if dist.get_rank() == 0 else None, told, 600.0)

    def _clients(self) -> list[HTTPClient]:
        addresses = ray.get([engine.get_url.remote() for engine in self.rollout_engines])
        # An engine that spans nodes has an actor on each, and only the first one has an address.
        return [HTTPClient(address) for address in addresses if address is not None]


def install() -> None:
    """Makes slime's actors send weights through Waybill where they would use NCCL (--update-weight-transport nccl)."""
    from slime.backends.megatron_utils import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        actor,
    )

    actor.UpdateWeightFromDistributed = UpdateWeightFromWaybill
