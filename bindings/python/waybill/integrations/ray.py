# SPDX-License-Identifier: Apache-2.0
"""Runs a job inside Ray: a controller as an actor, and identities for actors, which Ray gives no rank.

The driver:

    from waybill.integrations import ray as waybill_ray

    waybill_ray.controller("rl")
    waybill_ray.identity(trainers, job="rl")
    waybill_ray.identity(workers, job="rl", group="rollout-0")

Each actor, in a method that is called after that (not in __init__, where actors that wait for each other would block):

    self.trainer = waybill.Trainer(**waybill_ray.identity_here("rl"))

An actor that Ray starts again finds the same identity, and joins again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]

from waybill.controller import Controller
from waybill.errors import InvalidArgument, NotFound

# One for all drivers, so that a driver that was started again finds the actors of the one before.
_NAMESPACE = "waybill"


class _ControllerActor:
    """Serves a job's controller, and knows who its actors are."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._controller, self._token = start_controller(**options)
        self._identities: dict[str, dict[str, Any]] = {}

    def address(self) -> str:
        return self._controller.address

    def status(self) -> dict[str, Any]:
        return self._controller.status()

    def set_identities(self, identities: dict[str, dict[str, Any]]) -> None:
        self._identities.update(identities)

    def identity(self, actor_id: str) -> dict[str, Any] | None:
        identity = self._identities.get(actor_id)
        if identity is None:
            return None
        return {"controller": self._controller.address, "token": self._token, **identity}

    def close(self) -> None:
        self._controller.close()


def start_controller(**options: Any) -> tuple[Controller, str]:
    """Starts a controller in this process, and returns it with its random token.

    options  As for waybill.Controller, except listen and token.
    """
    token = secrets.token_hex(16)
    listen = f"{ray.util.get_node_ip_address()}:0"
    return Controller(listen=listen, token=token, **options), token


def _name(job: str) -> str:
    return f"waybill-controller-{job}"


def _actor(job: str) -> Any:
    try:
        return ray.get_actor(_name(job), namespace=_NAMESPACE)
    except ValueError as error:
        raise NotFound(
            f'job "{job}" has no controller in this Ray cluster: call waybill.integrations.ray.controller("{job}") first'
        ) from error


def controller(job: str, **options: Any) -> str:
    """Starts a job's controller if there is none, and returns its address.

    It is an actor that outlives the driver (named, detached), on any node, with a random token of its own. close() ends it.

    options  As for waybill.Controller, except listen and token.
    """
    actor = (
        ray.remote(_ControllerActor)
        .options(
            name=_name(job),
            namespace=_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
        )
        .remote({"job": job, **options})
    )
    return str(ray.get(actor.address.remote()))


def identity(actors: Sequence[Any], *, job: str, group: str = "") -> None:
    """Gives actors their ranks, in the order of the list.

    actors  All trainers of the job, or all workers of a group.
    group   The group's name; "" for trainers.

    Raises NotFound if the job has no controller.
    """
    if not actors:
        raise InvalidArgument("identity: no actors were given")
    where = {"group": group} if group else {}
    identities = {
        actor._actor_id.hex(): {"job": job, "rank": rank, "world": len(actors), **where}
        for rank, actor in enumerate(actors)
    }
    ray.get(_actor(job).set_identities.remote(identities))


def identity_here(job: str) -> dict[str, Any]:
    """Returns the arguments of waybill.Trainer or waybill.Worker for the actor that calls: controller, token, job, rank,
    world and group.

    Raises NotFound if the actor was not given to identity(), or the job has no controller.
    """
    actor_id = ray.get_runtime_context().get_actor_id()
    if actor_id is None:
        raise InvalidArgument("identity_here: call it inside an actor")
    found: dict[str, Any] | None = ray.get(_actor(job).identity.remote(actor_id))
    if found is None:
        raise NotFound(
            f'actor {actor_id} has no identity in job "{job}": give it to waybill.integrations.ray.identity() first'
        )
    return found


def status(job: str) -> dict[str, Any]:
    """Returns what the job is doing, as waybill.Controller.status() does."""
    found: dict[str, Any] = ray.get(_actor(job).status.remote())
    return found


def close(job: str) -> None:
    """Ends a job's controller."""
    actor = _actor(job)
    ray.get(actor.close.remote())
    ray.kill(actor)
