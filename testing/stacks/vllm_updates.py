"""Tests updates of running engines: the published vLLM, with its weights sent by trainers through Waybill.

    python vllm_updates.py            runs every case
    python vllm_updates.py CASE...    runs the named cases

An engine starts with checkpoint 0. Two trainers with FSDP2 shards send checkpoints 1 and 2. Then one trainer is killed while
it sends checkpoint 3, and the engine keeps checkpoint 2. The trainers are started again and send checkpoint 4. After each step
the engine must have, bit for bit, the parameters of an engine that loaded the same checkpoint from disk, and must generate the
same tokens.
"""

import argparse
import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_MLA_DISABLE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_TARGET_DEVICE="cpu",
)

# The cases by name: the model, and the engine's options.
CASES = {
    "qwen3": ("tiny-qwen3", {}),
    "qwen3-tp2": ("tiny-qwen3", {"tensor_parallel_size": 2}),
    "moe": ("tiny-qwen3-moe", {}),
    "moe-tp2": ("tiny-qwen3-moe", {"tensor_parallel_size": 2}),
    "deepseek": ("tiny-deepseek-v3-bf16", {}),
    "deepseek-tp2": ("tiny-deepseek-v3-bf16", {"tensor_parallel_size": 2}),
    "qwen3-served": ("tiny-qwen3", {}),
}
# Cases that run `vllm serve` and control it over HTTP. In the others the LLM is in the process of trainer 0.
SERVED = {"qwen3-served"}
PROMPT = list(range(3, 43))
TRAINERS = 2
KILLED = 3
# The checkpoints that an engine has at some time.
LOADED = (0, 1, 2, 4)


def weights(model, version):
    """Returns the tensors of a checkpoint by name. `version` is the seed of their values."""
    import torch
    from vllm_rank import checkpoint_of

    generator = torch.Generator().manual_seed(version)
    tensors = {}
    for name, (shape, dtype) in checkpoint_of(model).items():
        values = torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1)
        tensors[name] = (values + ("norm" in name)).to(getattr(torch, dtype))
    return tensors


def as_module(tensors):
    """Returns a module whose parameters have these names."""
    import torch

    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        owner = root
        for step in path:
            if not hasattr(owner, step):
                owner.add_module(step, torch.nn.Module())
            owner = getattr(owner, step)
        owner.register_parameter(leaf, torch.nn.Parameter(tensor, requires_grad=False))
    return root


def save(model, version, folder):
    """Writes a checkpoint to a new folder."""
    from safetensors.torch import save_file
    from vllm_rank import config_of

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(model)))
    save_file(weights(model, version), folder / "model.safetensors", metadata={"format": "pt"})


class Engine:
    """An engine in this process."""

    def __init__(self, model, version, folder, **options):
        from vllm import LLM

        save(model, version, folder)
        self.llm = self.client = LLM(
            str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128,
            compilation_config={"custom_ops": ["none"]}, **options,
        )  # fmt: skip

    def serves(self):
        """Returns the tokens that the engine generates, and the digests of its parameters for each rank."""
        from vllm import SamplingParams
        from vllm_cpu_kernels import digests

        sampling = SamplingParams(max_tokens=12, temperature=0, detokenize=False)
        prompt = {"prompt_token_ids": PROMPT}
        done = self.llm.generate([prompt], sampling, use_tqdm=False)
        return list(done[0].outputs[0].token_ids), self.llm.apply_model(digests)

    def stop(self):
        self.llm.llm_engine.engine_core.shutdown()


class Server:
    """A process of `vllm serve`. Its parameters cannot be read."""

    def __init__(self, model, version, folder, **options):
        from waybill.integrations.vllm import HTTPClient

        save(model, version, folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = {
            "port": port,
            "max-model-len": 128,
            "compilation-config": '{"custom_ops": ["none"]}',
        }
        for name, value in options.items():
            text = value if isinstance(value, (str, int)) else json.dumps(value)
            arguments[name.replace("_", "-")] = text
        command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--host", "127.0.0.1"]
        command += ["--enforce-eager", "--skip-tokenizer-init"]
        command += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"})
        self.address = f"http://127.0.0.1:{port}"
        self.client = HTTPClient(self.address)
        self.model = str(folder)
        self._await_answer()

    def _await_answer(self):
        import requests
        from urllib3.util import Retry

        session = requests.Session()
        retries = Retry(connect=40, backoff_factor=0.1, backoff_max=5)  # Three minutes.
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.get(f"{self.address}/health", timeout=5).raise_for_status()

    def serves(self):
        """Returns the tokens that the server generates, and None."""
        import requests

        body = {"model": self.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        body |= {"return_token_ids": True, "detokenize": False}
        answer = requests.post(f"{self.address}/v1/completions", json=body, timeout=60)
        if not answer.ok:
            sys.exit(f"{self.address}: {answer.text}")
        return answer.json()["choices"][0]["token_ids"], None

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def fresh(case):
    """Returns what engines serve that loaded a checkpoint from disk, by version. It runs in another process."""
    done = subprocess.run(
        [sys.executable, __file__, "--fresh", case], stdout=subprocess.PIPE, check=True
    )
    return {
        int(version): serves for version, serves in json.loads(done.stdout.splitlines()[-1]).items()
    }


def load_fresh(case, folder):
    model, options = CASES[case]
    served = {}
    for version in LOADED:
        engine = Engine(model, version, folder / str(version), **options)
        served[version] = engine.serves()
        engine.stop()
    return served


class TrainerRank:
    """A trainer in this process."""

    def __init__(self, rank, case, controller, store, client):
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.base import ModuleSource
        from waybill.integrations.vllm import WaybillInit

        self.rank, (self.model, _) = rank, CASES[case]
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=TRAINERS
        )
        self.module = as_module(weights(self.model, 0))
        fully_shard(self.module)
        self.engine = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller, deadline=60), client=client, source=ModuleSource(self.module)
        )

    def send(self, version):
        """Changes the weights to those of a checkpoint, as an optimizer would, and sends them."""
        import torch
        from torch.distributed.tensor import distribute_tensor

        new = weights(self.model, version)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                whole = distribute_tensor(new[name], parameter.device_mesh, parameter.placements)
                parameter.to_local().copy_(whole.to_local())
        if version == KILLED and self.rank > 0:
            os._exit(9)
        return self.engine.send_weights()

    def stop(self):
        import torch.distributed as dist

        self.engine.shutdown()
        dist.destroy_process_group()


class OtherTrainer:
    """Trainer 1, in another process."""

    def __init__(self, case, controller, store):
        command = [sys.executable, __file__, "--trainer", controller, "--store", store, case]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def tell(self, version):
        self.process.stdin.write(f"{version}\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


class Trainers:
    """Both trainers."""

    def __init__(self, case, controller, store, engine):
        began = time.monotonic()
        self.case = case
        self.other = OtherTrainer(case, controller.address, str(store))
        self.own = TrainerRank(0, case, controller.address, store, engine.client)
        print(f"{case}: trainers joined in {time.monotonic() - began:.1f} s", flush=True)

    def send(self, version):
        self.other.tell(version)
        began = time.monotonic()
        sent = self.own.send(version)
        print(f"{self.case}: version {sent} sent in {time.monotonic() - began:.3f} s", flush=True)
        return sent

    def stop(self):
        self.own.stop()
        self.other.stop()


def check(what, case, found, wanted):
    tokens, parameters = found
    wanted_tokens, wanted_parameters = wanted
    for rank, its in enumerate(parameters or []):
        wanted = wanted_parameters[rank]
        wrong = sorted(name for name in wanted if its.get(name) != wanted[name])
        if wrong or its.keys() != wanted.keys():
            sys.exit(f"{case}, {what}: rank {rank} has {len(wrong)} wrong parameters: {wrong[:5]}")
    if tokens != wanted_tokens:
        sys.exit(f"{case}, {what}: {tokens}, a fresh engine generates {wanted_tokens}")
    print(f"{case}: {what}: {tokens}", flush=True)


def run(case, folder):
    import waybill

    loaded = fresh(case)
    model, options = CASES[case]
    engine = (Server if case in SERVED else Engine)(
        model, 0, folder / "model", **options, weight_transfer_config={"backend": "waybill"}
    )
    atexit.register(engine.stop)
    check("loaded", case, engine.serves(), loaded[0])
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        trainers = Trainers(case, controller, folder / "store", engine)
        for version in range(1, KILLED):
            assert trainers.send(version) == version
            check(f"version {version}", case, engine.serves(), loaded[version])
        try:
            trainers.send(KILLED)
            sys.exit(f"{case}: version {KILLED} was sent by one trainer of two")
        except waybill.WaybillError as error:
            print(f"{case}: version {KILLED}: {error}", flush=True)
        check("a trainer was killed", case, engine.serves(), loaded[KILLED - 1])
        trainers.stop()
        trainers = Trainers(case, controller, folder / "second store", engine)
        assert trainers.send(KILLED + 1) > KILLED - 1
        check(f"version {KILLED + 1}", case, engine.serves(), loaded[KILLED + 1])
        trainers.stop()


def refuse(folder):
    """Checks that wrong input is refused with an error that names it, and that the engine then serves as before."""
    import waybill
    from vllm import SamplingParams
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import WaybillInit

    def trainer(tensors, deadline=60):
        return WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller.address, rank=0, world=1, deadline=deadline),
            client=engine.client,
            source=ModuleSource(as_module(tensors)),
        )

    def expect(what, said, call):
        try:
            call()
        except Exception as error:
            if said not in str(error):
                sys.exit(f"{what}: {error}")
            print(f"refused: {what}: {error}", flush=True)
        else:
            sys.exit(f"{what}: was not refused")
        check(what, "refused", engine.serves(), before)

    model = "tiny-qwen3"
    engine = Engine(model, 0, folder / "model", weight_transfer_config={"backend": "waybill"})
    atexit.register(engine.stop)
    before = engine.serves()
    right = weights(model, 1)
    norm = "model.layers.0.input_layernorm.weight"
    wrong = {
        "another model": weights("tiny-qwen3-moe", 1),
        "a tensor that nobody loads": right | {"model.layers.9.mlp.up_proj.weight": right[norm]},
        "a parameter that nothing fills": {n: t for n, t in right.items() if n != norm},
        "another shape": right | {norm: right[norm][:-1]},
    }
    named = ("model.layers.0.mlp.gate.weight", "model.layers.9.mlp.up_proj.weight", norm, norm)
    for (what, tensors), name in zip(wrong.items(), named, strict=True):
        with waybill.Controller(listen="127.0.0.1:0") as controller:
            expect(what, name, lambda: trainer(tensors))  # noqa: B023
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = trainer(right)
        engine.llm.llm_engine.add_request(
            "runs",
            {"prompt_token_ids": PROMPT},
            SamplingParams(max_tokens=2, temperature=0, detokenize=False),
        )
        try:
            sender.send_weights()
            sys.exit("an update while requests run was not refused")
        except waybill.FailedPrecondition as error:
            print(f"refused: requests run: {error}", flush=True)
        while engine.llm.llm_engine.has_unfinished_requests():
            engine.llm.llm_engine.step()
        engine.llm.reset_prefix_cache()
        check("requests run", "refused", engine.serves(), before)
        sender.send_weights()
        if engine.serves() == before:
            sys.exit("nothing was sent")
        sender.shutdown()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*CASES, "refused"]))
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = arguments.cases or [*CASES, "refused"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.fresh:
            print(json.dumps(load_fresh(cases[0], folder)))
        elif arguments.trainer:
            trainer = TrainerRank(1, cases[0], arguments.trainer, arguments.store, None)
            for line in sys.stdin:
                trainer.send(int(line))
            trainer.stop()
        elif cases == ["refused"]:
            refuse(folder)
        elif len(cases) == 1:
            run(cases[0], folder)
        else:  # Each case has its own process, because an engine does not release everything when it is stopped.
            for case in cases:
                subprocess.run([sys.executable, __file__, case], check=True)


if __name__ == "__main__":
    main()
