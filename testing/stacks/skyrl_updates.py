# SPDX-License-Identifier: Apache-2.0
"""Tests SkyRL's trainer with a vLLM server: two policy workers with FSDP2 train a tiny model, and the server follows.

    python skyrl_updates.py            runs every case
    python skyrl_updates.py CASE...    runs the named cases: grpo, fully-async

SkyRL's own entry point runs, with the argument of docs/integrations/skyrl.md. After each sync, the server's parameters and tokens must be, bit
for bit, those of an engine that loaded the weights which SkyRL saves then. Each worker may send only its share of the bytes.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import vllm_updates  # Sets vLLM's environment, which Ray's workers inherit.

os.environ["OMP_NUM_THREADS"] = "1"

from checkpoints import config_of, save, save_tokenizer, weights
from trl_updates import load_fresh
from updates import check

# SkyRL trains the embeddings and the head of a model apart, also if they are tied.
MODEL, WORKERS, STEPS = "tiny-qwen3-untied", 2, 2
CASES = ("grpo", "fully-async")


def run_on_cpu():
    """Lets SkyRL's workers run without a GPU, in this process."""
    import torch
    from skyrl.backends.skyrl_train.distributed import fsdp_utils
    from torch.distributed import device_mesh

    def mesh_of_cpus(device, *arguments, **options):
        return make(*("cpu", *arguments), **options)

    make = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = fsdp_utils.init_device_mesh = mesh_of_cpus
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    empty = torch.empty

    def empty_on_cpu(*size, device=None, **options):
        return empty(*size, device="cpu" if device == "cuda" else device, **options)

    fsdp_utils.torch = SimpleNamespace(**vars(torch) | {"empty": empty_on_cpu})


def actor():
    """Returns a policy worker of Waybill's class that runs without a GPU, and tells what it sends."""
    import torch.distributed as dist
    from waybill.integrations.skyrl import PolicyWorkerBase

    class Actor(PolicyWorkerBase):
        deadline, moved, joined = 60.0, False, None

        def __init__(self, **arguments):
            run_on_cpu()
            super().__init__(**arguments)

        def init_worker_process_group(self):
            dist.init_process_group("gloo")
            super().init_worker_process_group()

        def bytes_of_an_update(self):
            before, self.joined = self.joined, self._sender
            if before is not None:
                assert (before is not self.joined) == self.moved, "joins anew where weights moved"
            return self._sender._trainer.progress()["planned_bytes"]

        def move(self):
            """Gives the weights other memory, as SkyRL does for a reference model on the same GPU."""
            import torch

            self.moved = True
            self.model.model._apply(torch.clone)

    return Actor


def server():
    """Returns Waybill's server for SkyRL, for a machine without a GPU."""
    from waybill.integrations.skyrl_servers import Server

    class ServerOnCPU(Server):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            # With a list of no GPUs, vLLM would compile kernels for those of other processes.
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    return ServerOnCPU


def words():
    """Returns an environment that rewards a response by its letters."""
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class Words(BaseTextEnv):
        def __init__(self, env_config=None, extras=None):
            super().__init__()

        def step(self, action):
            return BaseTextEnvStepOutput(
                observations=[], reward=float(sum(map(ord, action)) % 7), done=True, metadata={}
            )

    return Words


class Watch:
    """Notes the weights of all workers, and what the server serves, after each sync."""

    def __init__(self, folder):
        self.folder, self.syncs = folder, 0

    def synced(self, dispatch):
        import ray
        from transformers import AutoTokenizer

        at = self.folder / f"sync-{self.syncs}"
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "model")
        dispatch.save_hf_model("policy", str(at), tokenizer)

        def ask(method):
            group = dispatch._actor_groups["policy"]
            return ray.get(group.async_run_ray_method("pass_through", method))

        (at / "sent.json").write_text(json.dumps(ask("bytes_of_an_update")))
        server = vllm_updates.Server.__new__(vllm_updates.Server)
        (server.address,) = dispatch._inference_engine_client.server_urls
        server.model, server.replicas = str(self.folder / "model"), 1
        (at / "serves.json").write_text(json.dumps(server.serves()))
        self.syncs += 1
        if self.syncs == STEPS:  # All of them join anew for the last one.
            ask("move")


def make_inputs(folder):
    """Writes a model with its tokenizer, and prompts of two words."""
    from transformers import AutoTokenizer

    save(MODEL, 0, folder / "model")
    save_tokenizer(MODEL, folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder / "model")
    # SkyRL asks for one token before the end, which has to be one of the model's.
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    (folder / "model/config.json").write_text(json.dumps(config_of(MODEL) | ends))
    prompts = [
        {"prompt": [{"role": "user", "content": f"w{i} w{i + 1}"}], "env_class": "words"}
        for i in range(20, 20 + 4 * STEPS)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))


def arguments(folder, case):
    """Returns SkyRL's command line."""
    engine = "generator.inference_engine"
    given = [
        "trainer.override_entrypoint=waybill.integrations.skyrl",
        f"data.train_data=[{folder}/prompts.jsonl]",
        "data.dataloader.num_workers=0",
        "data.dataloader.persistent_workers=false",
        f"trainer.policy.model.path={folder}/model",
        f"trainer.log_path={folder}/logs",
        f"trainer.ckpt_path={folder}/checkpoints",
        f"trainer.export_path={folder}/exports",
        "trainer.placement.colocate_all=false",
        f"trainer.placement.policy_num_gpus_per_node={WORKERS}",
        "trainer.algorithm.advantage_estimator=grpo",
        "trainer.algorithm.use_kl_loss=false",
        "trainer.policy.optimizer_config.lr=0.05",
        "trainer.flash_attn=false",
        "trainer.remove_microbatch_padding=false",
        "trainer.gradient_checkpointing=false",
        "trainer.train_batch_size=4",
        "trainer.policy_mini_batch_size=4",
        "trainer.max_prompt_length=32",
        "trainer.eval_interval=-1",
        "trainer.ckpt_interval=-1",
        "trainer.resume_mode=none",
        "trainer.logger=console",
        "trainer.enable_ray_gpu_monitor=false",
        "generator.max_input_length=32",
        "generator.n_samples_per_prompt=4",
        "generator.sampling_params.max_generate_length=8",
        f"{engine}.num_engines=1",
        f"{engine}.enforce_eager=true",
        f"{engine}.distributed_executor_backend=mp",
        f"{engine}.enable_ray_prometheus_stats=false",
        f"{engine}.max_num_batched_tokens=128",
        f"{engine}.max_num_seqs=16",
        f"{engine}.engine_init_kwargs.max_model_len=128",
        f"{engine}.engine_init_kwargs.compilation_config.custom_ops=[none]",
    ]
    if case == "fully-async":
        given += [
            "trainer.fully_async.enabled=true",
            "trainer.algorithm.policy_loss_type=rollout_is",
            "trainer.fully_async.max_staleness_steps=1",
            "trainer.fully_async.num_parallel_generation_workers=8",
            "generator.batched=false",
        ]
    return given


def train(folder, case):
    """Runs SkyRL's entry point, and watches."""
    import ray
    import skyrl.train.utils.utils as utils
    import skyrl_gym.envs.registration as registration
    import waybill.integrations.skyrl as under_test
    from skyrl.backends.skyrl_train.inference_servers import vllm_server_actor
    from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker
    from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.entrypoints import main_base
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer

    make_inputs(folder)
    registration.register(id="words", entry_point=words())
    install, watch = under_test.install, Watch(folder)

    def install_and_watch(cfg):
        install(cfg)
        fsdp_worker.PolicyWorker = ray.remote(num_gpus=1)(actor())
        vllm_server_actor.VLLMServerActor = server()
        sync = WorkerDispatch.save_weights_for_sampler

        async def watched(self, model_id=None):
            await sync(self, model_id)
            watch.synced(self)

        WorkerDispatch.save_weights_for_sampler = watched

    under_test.install = install_and_watch
    # SkyRL's task runs in this process.
    run = under_test._run._function
    under_test._run = SimpleNamespace(remote=lambda cfg: ray.put(run(cfg)))
    main_base.BasePPOExp.get_train_dataset = lambda self: PromptDataset(
        self.cfg.data.train_data, self.tokenizer, self.cfg.trainer.max_prompt_length, 1
    )
    if case == "fully-async":
        main_base.BasePPOExp.get_trainer = lambda self, **given: FullyAsyncRayPPOTrainer(**given)
    utils.peer_access_supported = lambda **_: False
    ray.init = functools.partial(
        ray.init, num_cpus=16, num_gpus=WORKERS + 1, include_dashboard=False
    )
    sys.argv = [main_base.__file__, *arguments(folder, case)]
    main_base.main()


def run(case, folder):
    """Runs one case."""
    subprocess.run([sys.executable, __file__, case, "--train", folder], check=True)
    subprocess.run([sys.executable, __file__, case, "--fresh", folder], check=True)
    held = 2 * sum(tensor.numel() for tensor in weights(MODEL, 0).values())  # In BF16.
    tokens, syncs = set(), sorted(folder.glob("sync-*"))
    for at in syncs:
        sent, served, fresh = (
            json.loads((at / f"{its}.json").read_text()) for its in ("sent", "serves", "fresh")
        )
        check(at.name, case, served, fresh)
        print(f"{case}: the workers send {sent} of {held} bytes", flush=True)
        assert sent == [held // WORKERS] * WORKERS
        tokens.add(tuple(served[0]))
    assert len(syncs) == STEPS + 1 and len(tokens) > STEPS, f"{len(syncs)} syncs, {tokens}"


def main(given):
    match given:
        case [case, "--train", name]:
            train(Path(name), case)
        case [_, "--fresh", name]:
            load_fresh(Path(name))
        case _:
            for case in given or CASES:
                with tempfile.TemporaryDirectory() as name:
                    run(case, Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
