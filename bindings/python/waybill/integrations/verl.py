# SPDX-License-Identifier: Apache-2.0
"""Connects verl to Waybill: a backend of verl's checkpoint engine.

Two lines of verl's configuration choose it:

    actor_rollout_ref.rollout.checkpoint_engine.backend=waybill
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=waybill.integrations.verl

verl hands whole tensors to a checkpoint engine on every actor, and wants whole tensors on every rollout worker. So this backend
cannot send shards to where they are needed: each actor sends a part of the tensors, and each rollout worker receives all of
them into memory of its own, from which verl loads them. verl_sharded.py has a backend that sends shards, from FSDP2 to vLLM.

The job outlives an update: ranks join with the first update, and again only if something changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]
from verl.checkpoint_engine.base import (  # type: ignore[import-not-found, unused-ignore]
    CheckpointEngine,
    CheckpointEngineRegistry,
)

from waybill.controller import Controller
from waybill.dtypes import FRAMEWORK_NAMES
from waybill.errors import DeadlineExceeded, FailedPrecondition, WaybillError
from waybill.events import GroupJoined, GroupLeft
from waybill.integrations import verl_sharded as verl_sharded  # Registers the other backend.
from waybill.integrations.ray import start_controller
from waybill.trainer import Trainer
from waybill.worker import Worker


class Round(NamedTuple):
    """What all ranks know of an update.

    rank      Among the actors, or among the rollout workers.
    actors, rollouts
              Their numbers.
    address, token
              Of the job's controller.
    version   Of this update.
    """

    rank: int
    actors: int
    rollouts: int
    address: str
    token: str
    version: int


def _group(rollout_rank: int) -> str:
    # Each rollout worker is a group, so that replicas come and go without a new plan for the others.
    return f"rollout-{rollout_rank}"


@CheckpointEngineRegistry.register("waybill")  # type: ignore[untyped-decorator, misc, unused-ignore]
class WaybillCheckpointEngine(CheckpointEngine):  # type: ignore[misc, unused-ignore]
    """Sends weights from actors to rollout workers through Waybill. verl makes one in each of their processes.

    bucket_size  Not used: nothing is put into buckets.
    is_master    Whether this is actor 0, which runs the job's controller.
    fabric       As in waybill.Trainer.
    deadline     In seconds, for joining and for each update.
    """

    def __init__(
        self,
        bucket_size: int = 0,
        is_master: bool = False,
        *,
        fabric: str = "auto",
        deadline: float = 600.0,
    ) -> None:
        self._is_master = is_master
        self._fabric = fabric
        self._deadline = deadline
        self._controller: Controller | None = None
        self._token = ""
        self._version = 0
        self._round: Round | None = None
        self._sender: _Sender | None = None
        self._receiver: _Receiver | None = None

    def prepare(self) -> dict[str, Any]:
        """Returns how to reach the job's controller, and the version of the next update. Others than actor 0 return {}."""
        if not self._is_master:
            return {}
        if self._controller is None:
            self._controller, self._token = start_controller()
        self._version += 1
        return {
            "address": self._controller.address,
            "token": self._token,
            "version": self._version,
        }

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Returns the arguments of init_process_group() for each actor, and for each rollout worker."""
        ((address, token, version),) = [
            (one["address"], one["token"], one["version"]) for one in metadata if one
        ]

        def rounds(side: str, count: int) -> dict[str, list[Any]]:
            return {
                "side": [side] * count,
                "round_": [
                    tuple(
                        Round(r, actor_wg_world_size, rollout_world_size, address, token, version)
                    )
                    for r in range(count)
                ],
            }

        return rounds("actor", actor_wg_world_size), rounds("rollout", rollout_world_size)

    def init_process_group(self, side: str, round_: tuple[Any, ...]) -> None:
        """Notes who takes part in the next update. A rank whose place or controller changed leaves the job."""
        now, before = Round(*round_), self._round
        if before is not None and now._replace(version=0, rollouts=0) != before._replace(
            version=0, rollouts=0
        ):
            self._leave()
        self._round = now
        if side == "rollout" and self._receiver is not None:
            self._receiver.resume()

    async def send_weights(
        self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Sends this actor's part of the tensors, and returns once every rollout worker has them.

        Raises the reason if some rollout worker does not get the version.
        """
        now = self._current()
        if self._sender is None:
            self._sender = _Sender(now, self._fabric, self._deadline)
        try:
            await asyncio.to_thread(self._sender.send, now, weights)
        except BaseException:
            self._leave()
            raise
        return {}

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Receives all tensors, and yields them. They stay valid until the next update begins."""
        now = self._current()
        if self._receiver is None:
            self._receiver = _Receiver(now, self._fabric, self._deadline)
        try:
            tensors = await asyncio.to_thread(self._receiver.receive, now)
        except BaseException:
            self._leave()
            raise
        for name, tensor in tensors.items():
            yield name, tensor

    def finalize(self) -> None:
        """Keeps the job. A rollout worker refuses updates until it takes part in one again."""
        if self._receiver is not None:
            self._receiver.pause()

    def _current(self) -> Round:
        if self._round is None:
            raise FailedPrecondition("update weights: init_process_group() comes first")
        return self._round

    def _leave(self) -> None:
        for rank in (self._sender, self._receiver):
            if rank is not None:
                rank.close()
        self._sender = self._receiver = None


class _Sender:
    """One actor, which is a trainer of the job."""

    def __init__(self, now: Round, fabric: str, deadline: float) -> None:
        self._deadline = deadline
        self._copies: dict[str, Any] = {}
        self._groups: set[str] = set()
        self._joined = False
        self._trainer = Trainer(
            now.address, token=now.token, rank=now.rank, world=now.actors, fabric=fabric
        )

    def send(self, now: Round, weights: Iterable[tuple[str, Any]]) -> None:
        """Copies this actor's tensors, since verl frees them again, and sends the copies."""
        for index, (name, tensor) in enumerate(weights):  # Every actor has to walk through all.
            if index % now.actors != now.rank:
                continue
            if name in self._copies:
                self._copies[name].copy_(tensor)
            else:
                self._copies[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        if not self._joined:
            for name, copy in self._copies.items():
                self._trainer.add(name, copy)
            self._trainer.join(self._deadline)
            self._joined = True
        wanted = {_group(rank) for rank in range(now.rollouts)}
        self._await_groups(wanted)
        publish = self._trainer.publish_async(now.version, deadline=self._deadline)
        try:
            publish.committed.wait()
        except WaybillError:
            # A group that takes no part is paused, and refuses the version. Only those that take part count; and the
            # copies stay as they are until the version is sent.
            if not publish.sent.done or not wanted <= publish.outcomes.keys():
                raise
        for group in sorted(wanted):
            error = publish.outcomes.get(group)
            if error is not None:
                raise error

    def _await_groups(self, wanted: set[str]) -> None:
        """Reads the events that are there, and waits until all groups have joined."""
        until = time.monotonic() + self._deadline
        while True:
            missing = wanted - self._groups
            left = max(0.0, until - time.monotonic()) if missing else 0.0
            try:
                event = next(self._trainer.events(left))
            except DeadlineExceeded:
                if not missing:
                    return
                names = ", ".join(sorted(missing))
                raise DeadlineExceeded(
                    f"send weights: {names} did not join within {self._deadline} s"
                ) from None
            if isinstance(event, GroupJoined):
                self._groups.add(event.group)
            elif isinstance(event, GroupLeft):
                self._groups.discard(event.group)

    def close(self) -> None:
        self._trainer.close()


class _Receiver:
    """One rollout worker, which is a group of one worker of the job."""

    def __init__(self, now: Round, fabric: str, deadline: float) -> None:
        self._deadline = deadline
        self._tensors: dict[str, Any] = {}
        self._paused = False
        self._worker = Worker(
            now.address,
            token=now.token,
            group=_group(now.rank),
            rank=0,
            world=1,
            mode="in-place",
            fabric=fabric,
            catch_up=False,
        )

    def receive(self, now: Round) -> dict[str, Any]:
        """Receives a version, and returns the tensors by name."""
        if not self._tensors:
            for name, dtype, shape in self._worker.job_tensors(self._deadline):
                tensor = torch.empty(shape, dtype=getattr(torch, FRAMEWORK_NAMES[dtype]))
                self._tensors[name] = tensor
                self._worker.add(name, tensor)
            self._worker.join(self._deadline)
        self._worker.receive(now.version, self._deadline)
        return self._tensors

    def pause(self) -> None:
        if self._tensors and not self._paused:
            self._worker.pause()
            self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._worker.resume(contents_kept=True)
            self._paused = False

    def close(self) -> None:
        self._worker.close()
