# SPDX-License-Identifier: Apache-2.0
"""Connects verl's FSDP2 actors to its vLLM servers: each actor's shards go straight into the parameters of the engines.

Three lines of verl's configuration choose it. `+` adds a key that verl's files do not have:

    actor_rollout_ref.rollout.checkpoint_engine.backend=waybill_sharded
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=waybill.integrations.verl
    +actor_rollout_ref.rollout.engine_kwargs.vllm.weight_transfer_config.backend=waybill

verl gives a backend whole tensors, which it gathers one by one while the backend reads them. This backend needs the training
engine instead, and replaces ActorRolloutRefWorker.update_weights() for that. docs/upstream/verl.md has the change to verl that would
make this unnecessary.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, NamedTuple

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
from verl.checkpoint_engine.base import (  # type: ignore[import-not-found, unused-ignore]
    CheckpointEngine,
    CheckpointEngineRegistry,
)

from waybill.controller import Controller
from waybill.errors import FailedPrecondition, NotFound, Unimplemented
from waybill.integrations.clients import Client
from waybill.integrations.ray import start_controller
from waybill.integrations.sender import Sender, told_to_engines
from waybill.trainer import Trainer


class Round(NamedTuple):
    """What an actor knows of an update.

    rank, world     Of this actor, among the actors.
    address, token  Of the job's controller.
    servers         The Ray actors of the rollout's vLLM servers.
    """

    rank: int
    world: int
    address: str
    token: str
    servers: tuple[Any, ...]


class ServerClient(Client):
    """Controls one of verl's vLLM servers. verl pauses it before an update, and resumes it afterwards."""

    ends_failed_updates = True

    def __init__(self, server: Any) -> None:
        super().__init__()
        self._server = server

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return str(self._server)

    def _call(self, method: str, **arguments: Any) -> None:
        ray.get(self._server.collective_rpc.remote(method, kwargs=arguments))

    def _join(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info=init_info)

    def _start(self) -> None:
        self._call("start_weight_update")

    def _update(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", update_info=update_info)

    def _finish(self, weight_version: str | None) -> None:
        self._call("finish_weight_update")

    def _resume_engine(self) -> None:
        ray.get(self._server.clear_kv_cache.remote())


@CheckpointEngineRegistry.register("waybill_sharded")  # type: ignore[untyped-decorator, misc, unused-ignore]
class ShardedCheckpointEngine(CheckpointEngine):  # type: ignore[misc, unused-ignore]
    """Sends the shards of FSDP2 actors to verl's vLLM servers. verl makes one in the process of each actor and rollout worker.

    bucket_size  Not used: nothing is put into buckets.
    is_master    Whether this is actor 0, which runs the job's controller and controls the servers. None: a rollout worker.
    fabric       As in waybill.Trainer.
    deadline     In seconds, for joining and for each update.
    """

    takes_engine: ClassVar[bool] = True
    # verl's servers take an empty one to mean that they have nothing to load.
    wire_format = "delta_flush"

    def __init__(
        self,
        bucket_size: int = 0,
        is_master: bool | None = None,
        *,
        fabric: str = "auto",
        deadline: float = 600.0,
    ) -> None:
        self._is_master = is_master
        self._fabric = fabric
        self._deadline = deadline
        self._controller: Controller | None = None
        self._token = ""
        self._round: Round | None = None
        self._sender: Sender | None = None
        if is_master is not None:
            _give_engines()

    def prepare(self) -> dict[str, Any]:
        """Returns what build_topology() needs: actor 0's controller, and a handle of each rollout worker."""
        if self._is_master is None:
            return {"rollout": ray.get_runtime_context().current_actor}
        if not self._is_master:
            return {}
        if self._controller is None:
            self._controller, self._token = start_controller()
        return {"address": self._controller.address, "token": self._token}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Returns the arguments of init_process_group() for each actor, and for each rollout worker."""
        ((address, token),) = [
            (one["address"], one["token"]) for one in metadata if "address" in one
        ]
        workers = [one["rollout"] for one in metadata if "rollout" in one]
        replicas = ray.get([worker.get_replica_rank.remote() for worker in workers])
        servers = tuple(_server(replica) for replica in dict.fromkeys(replicas))
        rounds = [
            tuple(Round(rank, actor_wg_world_size, address, token, servers))
            for rank in range(actor_wg_world_size)
        ]
        return {"round_": rounds}, {"round_": [None] * rollout_world_size}

    def init_process_group(self, round_: tuple[Any, ...] | None) -> None:
        """Notes who takes part in the next update. If that has changed, the actor leaves the job and joins it anew."""
        now = None if round_ is None else Round(*round_)
        if now != self._round:
            self._leave()
        self._round = now

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float]:
        """Makes all servers have the weights of a training engine of verl's. Every actor calls it.

        If it raises, the servers keep the weights that they had.
        """
        await asyncio.to_thread(self._send, weights)
        return {}

    def _send(self, engine: Any) -> None:
        if self._sender is None:
            self._sender = self._join(engine)
        self._sender.send()

    def _join(self, engine: Any) -> Sender:
        now = self._round
        if now is None:
            raise FailedPrecondition("update weights: init_process_group() comes first")
        trainer = Trainer(
            now.address, token=now.token, rank=now.rank, world=now.world, fabric=self._fabric
        )
        try:
            _lend(trainer, engine)
        except BaseException:
            trainer.close()
            raise
        told = told_to_engines(now.address, self._deadline, token=now.token, fabric=self._fabric)
        clients = [ServerClient(server) for server in now.servers] if now.rank == 0 else None
        return Sender(trainer, clients, told, self._deadline)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields nothing: actor 0 makes the servers receive."""
        return
        yield

    def finalize(self) -> None:
        """Keeps the job."""

    def _leave(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


def _server(replica: int) -> Any:
    name = f"vllm_server_{replica}_0"
    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise NotFound(
            f'update weights: there is no Ray actor "{name}": backend=waybill_sharded needs rollout.name=vllm; '
            "backend=waybill serves the other rollouts"
        ) from error


def _lend(trainer: Trainer, engine: Any) -> None:
    """Lends an engine's shards, under the names that verl's own export gives."""
    from verl.utils.fsdp_utils import (  # type: ignore[import-not-found, unused-ignore]
        fsdp_version,
    )
    from verl.utils.model import (  # type: ignore[import-not-found, unused-ignore]
        convert_weight_keys,
    )
    from verl.workers.engine.fsdp.utils import (  # type: ignore[import-not-found, unused-ignore]
        unfuse_moe_params,
    )

    module = engine.module
    if fsdp_version(module) != 2 or hasattr(module, "peft_config"):
        raise Unimplemented(
            f"update weights: {type(engine).__name__} does not train with FSDP2, or trains an adapter: "
            "backend=waybill_sharded needs actor.strategy=fsdp2 without LoRA; backend=waybill serves the others"
        )
    kind = engine.model_config.hf_config.model_type

    def export(twin: Any) -> Any:
        return unfuse_moe_params(convert_weight_keys(twin.state_dict(), twin).items(), kind)

    trainer.add_exported(module, export)


@functools.cache  # Once in each process.
def _give_engines() -> None:
    """Makes verl's actors give their training engine to backends that take one."""
    from verl.workers.engine_workers import (  # type: ignore[import-not-found, unused-ignore]
        ActorRolloutRefWorker,
    )

    given = ActorRolloutRefWorker.update_weights

    @functools.wraps(given)
    async def update_weights(self: Any, global_steps: int | None = None, mode: str = "auto") -> Any:
        if mode == "naive" or not getattr(self.checkpoint_engine, "takes_engine", False):
            return await given(self, global_steps=global_steps, mode=mode)
        return await self.checkpoint_engine.send_weights(
            self.actor.engine, global_steps=global_steps
        )

    ActorRolloutRefWorker.update_weights = update_weights
