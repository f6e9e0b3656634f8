# SPDX-License-Identifier: Apache-2.0
"""Tests the backend of verl's checkpoint engine: verl's own registry and manager, real Ray actors, and one of them killed.

    python verl_updates.py

Each actor yields all tensors of a checkpoint, as verl's actors do, and each rollout worker must receive every byte of them.
"""

import os
from types import SimpleNamespace

import ray

MODEL, ACTORS, ROLLOUTS = "tiny-qwen3", 2, 2


def digests_of(tensors):
    from hashlib import sha256

    import torch

    return {
        name: sha256(tensor.contiguous().view(torch.uint8).numpy()).hexdigest()
        for name, tensor in tensors
    }


@ray.remote(num_cpus=0)
class Side:
    """One process of verl: an actor or a rollout worker, with its checkpoint engine."""

    def __init__(self, is_master):
        import waybill.integrations.verl  # noqa: F401
        from verl.checkpoint_engine.base import CheckpointEngineRegistry

        self.engine = CheckpointEngineRegistry.new(
            "waybill", bucket_size=1 << 20, is_master=is_master, deadline=30
        )

    def execute(self, method, **arguments):
        return getattr(self.engine, method)(**arguments)

    async def send(self, version):
        from checkpoints import weights

        await self.engine.send_weights(iter(weights(MODEL, version).items()), global_steps=version)

    async def receive(self, dies=False):
        if dies:
            os._exit(9)
        return digests_of([pair async for pair in self.engine.receive_weights()])


class Group:
    """What verl's manager needs of a worker group."""

    def __init__(self, actors):
        self.actors, self.world_size = actors, len(actors)

    def execute_checkpoint_engine(self, method, **arguments):
        return [
            actor.execute.remote(
                method[i], **{name: values[i] for name, values in arguments.items()}
            )
            for i, actor in enumerate(self.actors)
        ]


def update(manager, rollout, version, dying=()):
    """Does what the manager's update_weights() does, with ranks that are not verl's whole workers."""
    manager.build_process_group(rollout)
    sent = [actor.send.remote(version) for actor in manager.actor_wg.actors]
    received = [actor.receive.remote(dies=i in dying) for i, actor in enumerate(rollout.actors)]
    ray.get(sent)
    found = ray.get(received)
    every = manager.actor_wg.actors + rollout.actors
    ray.get([actor.execute.remote("finalize") for actor in every])
    return found


def main():
    from checkpoints import weights
    from verl.checkpoint_engine.base import CheckpointEngineManager

    ray.init(num_cpus=1, include_dashboard=False)
    config = SimpleNamespace(backend="waybill", custom_backend_module="waybill.integrations.verl")
    actors = Group([Side.remote(rank == 0) for rank in range(ACTORS)])
    manager = CheckpointEngineManager(config, actors, [])
    rollout = Group([Side.remote(False) for _ in range(ROLLOUTS)])

    def check(what, version):
        wanted = digests_of(weights(MODEL, version).items())
        for rank, found in enumerate(update(manager, rollout, version)):
            wrong = [name for name in wanted if found.get(name) != wanted[name]]
            assert not wrong and found.keys() == wanted.keys(), (what, rank, wrong[:5])
        print(
            f"checkpoint {version}: right on {rollout.world_size} rollout workers, {what}",
            flush=True,
        )

    check("the first update", 1)
    check("the job is kept", 2)
    rollout = Group([*rollout.actors, Side.remote(False)])
    check("a replica was added", 3)
    everybody = rollout
    rollout = Group(rollout.actors[:1])
    check("two replicas take no part", 4)
    rollout = everybody
    check("they take part again", 5)
    try:
        update(manager, rollout, 6, dying={1})
        raise SystemExit("an update of a dead rollout worker succeeded")
    except (ray.exceptions.RayError, OSError) as error:
        print("a rollout worker was killed:", str(error).splitlines()[-1], flush=True)
    rollout = Group([rollout.actors[0], Side.remote(False), rollout.actors[2]])
    check("another one is in its place", 7)


if __name__ == "__main__":
    main()
