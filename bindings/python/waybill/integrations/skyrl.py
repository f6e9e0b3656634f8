# SPDX-License-Identifier: Apache-2.0
"""Connects SkyRL's FSDP2 policy workers to its vLLM servers: each worker sends its shards, and none gathers the weights.

One argument of SkyRL's command line chooses it:

    trainer.override_entrypoint=waybill.integrations.skyrl

A program with an entry point of its own needs two lines in the Ray task that runs its experiment:

    import waybill.integrations.skyrl

    waybill.integrations.skyrl.install(cfg)
    MyExperiment(cfg).run()
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
from skyrl.backends.skyrl_train.workers import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    worker_dispatch,
)
from skyrl.backends.skyrl_train.workers.fsdp import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    fsdp_worker,
)

from waybill.errors import Unimplemented
from waybill.integrations.ray import start_controller
from waybill.integrations.sender import Sender, told_to_engines
from waybill.names import engine_name
from waybill.trainer import Trainer


class PolicyWorkerBase(fsdp_worker.FSDPPolicyWorkerBase):  # type: ignore[misc, unused-ignore]
    """A policy worker of SkyRL that lends its shards. Worker 0 runs the job's controller, and controls the servers.

    fabric, deadline  As for waybill.integrations.trl.install(). A subclass can change them.
    """

    fabric: ClassVar[str] = "auto"
    deadline: ClassVar[float] = 600.0

    _told: dict[str, Any] | None = None
    _sender: Sender | None = None
    _lent: list[int] | None = None

    async def init_weight_sync_state(
        self, inference_engine_client: Any, inference_engine_cfg: Any
    ) -> None:
        """Starts the controller. The workers and the servers join the job with the first update."""
        if dist.get_rank() == 0 and self._told is None:
            self._controller, token = start_controller()
            self._told = told_to_engines(
                self._controller.address, self.deadline, token=token, fabric=self.fabric
            )

    async def broadcast_to_inference_engines(
        self, inference_engine_client: Any, inference_engine_cfg: Any, model_id: str | None = None
    ) -> None:
        """Makes all servers serve the present weights. If it raises, they serve the old ones."""
        # state_dict() also shards again what a forward pass has left whole.
        tensors = self.model.model.state_dict().values()
        held = [getattr(its, "to_local", lambda its=its: its)().data_ptr() for its in tensors]
        # SkyRL moves the weights when a reference model needs their GPU. All ranks have to join together, but some may have the
        # weights where they were.
        joins: list[bool] = [False] * dist.get_world_size()
        dist.all_gather_object(joins, self._sender is None or held != self._lent)
        if any(joins):
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            # Nobody joins anew before all have left.
            told: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(told, self._told)
            clear = inference_engine_cfg.enable_prefix_caching and (
                not self.cfg.fully_async.enabled
                or self.cfg.fully_async.clear_kv_cache_on_weight_sync
            )
            servers = inference_engine_client.server_urls if dist.get_rank() == 0 else None
            self._sender = await asyncio.to_thread(self._join, told[0], servers, clear)
            self._lent = held
        assert self._sender is not None
        await asyncio.to_thread(self._sender.send)

    def _join(self, told: Any, servers: list[str] | None, clear_cache: bool) -> Sender:
        trainer = Trainer(
            told["controller"],
            token=told["token"],
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            fabric=told["fabric"],
        )
        clients = None
        try:
            if servers is not None:
                from waybill.integrations.vllm.clients import HTTPClient

                clients = [HTTPClient(server, clear_cache=clear_cache) for server in servers]
            prefix = "language_model." if self._is_multimodal_lm_only else ""
            trainer.add_exported(self.model.model, functools.partial(_export, prefix))
        except BaseException:
            trainer.close()
            raise
        return Sender(trainer, clients, told, told["deadline"])


def _export(prefix: str, twin: Any) -> Iterator[tuple[str, Any]]:
    """Makes the tensors of a checkpoint, as transformers' save_pretrained() does, with a prefix to their names."""
    from transformers.core_model_loading import (  # type: ignore[import-not-found, unused-ignore]
        revert_weight_conversion,
    )

    tensors = {engine_name(name): tensor for name, tensor in twin.state_dict().items()}
    for name, tensor in revert_weight_conversion(twin, tensors).items():
        yield prefix + name, tensor


def install(cfg: Any) -> None:
    """Makes SkyRL's trainers in this process send weights through Waybill. Call it before the experiment is made."""
    trainer, engine = cfg.trainer, cfg.generator.inference_engine
    for needed, is_so in {
        "trainer.strategy=fsdp": trainer.strategy == "fsdp",
        "trainer.placement.colocate_all=false": not trainer.placement.colocate_all,
        "trainer.policy.model.lora.rank=0": trainer.policy.model.lora.rank == 0,
        "generator.inference_engine.data_parallel_size=1": engine.data_parallel_size == 1,
    }.items():
        if not is_so:
            raise Unimplemented(f"send SkyRL's weights through Waybill: this needs {needed}")
    from waybill.integrations.skyrl_servers import install_servers

    install_servers(cfg)
    fsdp_worker.PolicyWorker = ray.remote(num_gpus=1)(PolicyWorkerBase)
    worker_dispatch.WorkerDispatch.save_weights_for_sampler = _save_weights_for_sampler


async def _save_weights_for_sampler(self: Any, model_id: str | None = None) -> None:
    """Sends the weights while the servers generate, where SkyRL would pause them first."""
    client = self._inference_engine_client
    await asyncio.to_thread(self._broadcast_to_inference_engines, client, model_id=model_id)
    client.increment_weight_version()


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator, misc, unused-ignore]
def _run(cfg: Any) -> None:
    from skyrl.train.entrypoints.main_base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        BasePPOExp,
    )

    install(cfg)
    BasePPOExp(cfg).run()


def main() -> None:
    """Runs SkyRL's own entry point with install(). SkyRL calls it."""
    from skyrl.train.entrypoints import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        main_base,
    )

    main_base.skyrl_entrypoint = _run
    sys.argv = [one for one in sys.argv if not one.startswith("trainer.override_entrypoint=")]
    main_base.main()
