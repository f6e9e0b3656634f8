# SPDX-License-Identifier: Apache-2.0
"""Tests verl's sharded backend: verl's own actors, with FSDP2 engines, and its manager.

    python verl_sharded.py

Two actors train checkpoint 0 and send checkpoints 1 and 2 to a server, whose tensors must have every byte of them. Each actor may
send only its share of the bytes. Where vLLM is installed, verl's own vLLM server is the receiver, and must generate what an engine
generates that loaded the same checkpoint. Elsewhere a Waybill worker is in its place.
"""

import importlib.util
import os
import tempfile
from pathlib import Path

os.environ.update(VERL_ENGINE_DEVICE="cuda", VLLM_USE_V2_MODEL_RUNNER="0")

import ray

MODEL, ACTORS, SERVER = "tiny-qwen3", 2, "vllm_server_0_0"
VLLM = importlib.util.find_spec("vllm") is not None


def run_on_cpu():
    """Gives verl a platform without a GPU, which it does not bring, in this process."""
    import torch
    import verl.workers.engine_workers as workers
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class OnCPU(PlatformCUDA):
        device_name = vendor_name = "cpu"
        device_module = torch.cpu

        def current_device(self):
            return "cpu"

        def communication_backend_name(self):
            return "gloo"

    set_platform(OnCPU())
    workers.aggressive_empty_cache = lambda **_: None


def config_of(folder):
    """Returns verl's configuration of actors and rollout, with the lines of docs/integrations/verl.md."""
    import verl
    from hydra import compose, initialize_config_dir

    where = Path(verl.__file__).parent / "trainer/config"
    with initialize_config_dir(str(where), version_base=None):
        return compose(
            "ppo_trainer",
            [
                "actor_rollout_ref.rollout.checkpoint_engine.backend=waybill_sharded",
                "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=waybill.integrations.verl",
                "+actor_rollout_ref.rollout.engine_kwargs.vllm.weight_transfer_config.backend=waybill",
                "+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.waybill_sharded.deadline=60",
                f"actor_rollout_ref.model.path={folder}",
                "+actor_rollout_ref.model.override_config.attn_implementation=eager",
                "actor_rollout_ref.model.use_remove_padding=False",
                "actor_rollout_ref.actor.strategy=fsdp2",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
                "actor_rollout_ref.rollout.enforce_eager=True",
                "+actor_rollout_ref.rollout.enable_sleep_mode=False",
                "actor_rollout_ref.rollout.free_cache_engine=False",
                "actor_rollout_ref.rollout.max_model_len=128",
                "actor_rollout_ref.rollout.max_num_batched_tokens=128",
                "actor_rollout_ref.rollout.max_num_seqs=4",
                "+actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config.custom_ops=[none]",
            ],
        ).actor_rollout_ref


def actors_of(config):
    """Returns a worker group of verl's actors."""
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.single_controller.ray.base import create_colocated_worker_cls
    from verl.workers.engine_workers import ActorRolloutRefWorker

    class Actor(ActorRolloutRefWorker):
        def __init__(self, **arguments):
            import torch.distributed as dist

            run_on_cpu()
            dist.init_process_group("gloo")
            super().__init__(**arguments)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def train(self, version):
            """Changes the weights to those of a checkpoint, as an optimizer would."""
            import torch
            from checkpoints import weights
            from torch.distributed.tensor import distribute_tensor

            new = weights(MODEL, version)
            with torch.no_grad():
                for name, parameter in self.actor.engine.module.named_parameters():
                    whole = new[name].to(parameter.dtype)
                    shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
                    parameter.to_local().copy_(shard.to_local())

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def bytes_of_an_update(self):
            sender = self.checkpoint_engine._sender
            assert getattr(self, "sender", sender) is sender, "the actor has joined anew"
            self.sender = sender
            return sender._trainer.progress()["planned_bytes"]

    made = RayClassWithInitArgs(ray.remote(Actor), config=config, role="actor")
    group = RayWorkerGroup(
        RayResourcePool([ACTORS], use_gpu=False, max_colocate_count=1),
        create_colocated_worker_cls({"actor": made}),
        device_name="cpu",
    ).spawn({"actor"})["actor"]
    group.init_model()
    return group


class Adapter:
    """Takes the place of verl's adapter for a vLLM server, which needs vLLM."""

    replica_rank = 0

    async def update_weights(self, weights, *, wire_format, **_):
        assert wire_format == "delta_flush" and [one async for one in weights] == []


@ray.remote(num_cpus=0)
class StandIn:
    """Takes the place of a vLLM server, with a Waybill worker that has the tensors as the actors send them."""

    def collective_rpc(self, method, kwargs):
        getattr(self, "_" + method)(**kwargs)

    def _init_weight_transfer_engine(self, init_info):
        import torch
        from waybill.dtypes import FRAMEWORK_NAMES
        from waybill.integrations.receiving import worker_of_engine

        self.worker = worker_of_engine(init_info, f"vllm-{init_info['engine']}-0", 0, 1)
        self.tensors = {
            name: torch.zeros(shape, dtype=getattr(torch, FRAMEWORK_NAMES[dtype]))
            for name, dtype, shape in self.worker.job_tensors(60)
            if name != "lm_head.weight"  # Tied, and left out by vLLM, too.
        }
        for name, tensor in self.tensors.items():
            self.worker.add(name, tensor)
        self.worker.join(60)

    def _start_weight_update(self):
        pass

    def _update_weights(self, update_info):
        self.worker.receive(update_info["version"], update_info["deadline"])

    def _finish_weight_update(self):
        pass

    def clear_kv_cache(self):
        pass

    def wrong(self, version):
        """Returns the names of tensors that are not those of a checkpoint."""
        import torch
        from checkpoints import weights

        wanted = weights(MODEL, version)
        assert self.tensors.keys() == wanted.keys()
        return [n for n, t in self.tensors.items() if not torch.equal(t, wanted[n].to(t.dtype))]


class StandInReplica:
    """What verl's manager needs of a replica without a server."""

    def __init__(self, workers):
        self.workers = workers

    async def _nothing(self, **_):
        pass

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = _nothing


def replica_of(rollout, model, worker):
    """Returns verl's own replica of one vLLM server."""
    from verl.workers.rollout.replica import RolloutMode
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    class Server(vLLMHttpServer):
        def __init__(self, **arguments):
            from vllm.v1.engine.async_llm import AsyncLLM

            pause = AsyncLLM.pause_generation

            # verl 0.9.1 names an argument that vLLM 0.33 no longer has.
            def pause_as_before(engine, wait_for_inflight_requests, **options):
                return pause(engine, mode="abort", **options)

            AsyncLLM.pause_generation = pause_as_before
            run_on_cpu()
            super().__init__(**arguments)
            # With a list of no GPUs, vLLM would compile kernels for those of other processes.
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)

        async def serves(self):
            """Returns the tokens that the engine generates, and the digests of its parameters for each rank."""
            from updates import PROMPT
            from vllm_updates import by_rank

            sampling = {"max_tokens": 12, "temperature": 0}
            tokens = (await self.generate(PROMPT, sampling, "request")).token_ids
            ranks = await self.engine.collective_rpc("compute_weight_checksums")
            return tokens, by_rank({name: it for its in ranks for name, it in its.items()})

    replica = vLLMReplica(0, rollout, model, gpus_per_node=1)
    replica.workers = [worker]
    server = ray.remote(Server).options(num_cpus=0, name=SERVER, max_concurrency=100)
    replica.servers = [
        server.remote(
            config=rollout, model_config=model, rollout_mode=RolloutMode.STANDALONE,
            workers=replica.workers, replica_rank=0, node_rank=0, gpus_per_node=1, nnodes=1,
            cuda_visible_devices="",
        )
    ]  # fmt: skip
    ray.get(replica.servers[0].launch_server.remote())
    return replica


def rollout_worker(config, model, store, adapter):
    """Returns verl's own rollout worker."""
    from verl.checkpoint_engine.base import CheckpointEngineWorker

    environment = {"RANK": "0", "WORLD_SIZE": "1", "RAY_LOCAL_WORLD_SIZE": "1"}
    environment |= {"MASTER_ADDR": "", "MASTER_PORT": "", "DIST_INIT_METHOD": f"file://{store}"}
    return (
        ray.remote(CheckpointEngineWorker)
        .options(num_cpus=0, runtime_env={"env_vars": environment})
        .remote(config, model, adapter, replica_rank=0)
    )


def main(folder):
    from checkpoints import save, save_tokenizer, weights
    from verl.checkpoint_engine.base import CheckpointEngineManager
    from verl.utils.config import omega_conf_to_dataclass

    if VLLM:
        import vllm_updates  # Sets vLLM's environment, which Ray's workers inherit.

        loaded = vllm_updates.fresh(vllm_updates.__file__, "qwen3")
    save(MODEL, 0, folder / "model")
    save_tokenizer(MODEL, folder / "model")  # verl lets the engine generate its tokens only.
    ray.init(num_cpus=2 * ACTORS, include_dashboard=False)
    run_on_cpu()
    config = config_of(folder / "model")
    rollout, model = (omega_conf_to_dataclass(config[its]) for its in ("rollout", "model"))
    actors = actors_of(config)
    if VLLM:
        worker = rollout_worker(rollout, model, folder / "store", None)
        replica = replica_of(rollout, model, worker)
    else:
        server = StandIn.options(name=SERVER).remote()
        worker = rollout_worker(rollout, model, folder / "store", Adapter())
        replica = StandInReplica([worker])
    manager = CheckpointEngineManager(rollout.checkpoint_engine, actors, [replica])
    size = 2 if VLLM else 4  # The stand-in has the actors' F32, and vLLM BF16.
    held = sum(tensor.numel() * size for tensor in weights(MODEL, 0).values())
    for version in (1, 2):
        actors.train(version)
        manager.update_weights(version)
        if VLLM:
            served = ray.get(replica.servers[0].serves.remote())
            vllm_updates.check(f"checkpoint {version}", "verl", served, loaded[version])
        else:
            wrong = ray.get(server.wrong.remote(version))
            assert not wrong, f"checkpoint {version}: {wrong[:5]}"
            print(f"checkpoint {version}: right", flush=True)
        sent = actors.bytes_of_an_update()
        print(f"the actors send {sent} of {held} bytes", flush=True)
        assert sent == [held // ACTORS] * ACTORS


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
