# SPDX-License-Identifier: Apache-2.0
"""Tests updates of running engines: the published vLLM, with its weights sent by trainers through Waybill.

    python vllm_updates.py            runs every case
    python vllm_updates.py CASE...    runs the named cases

updates.py says what happens in a case.
"""

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_SIM_MULTI_NUMA="0",  # Lets replicas share a node of memory.
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_MLA_DISABLE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_TARGET_DEVICE="cpu",
)

from checkpoints import as_module, config_of, save, weights
from updates import PROMPT, Stack, check, fresh, main
from vision import prompt_with_image

# The cases by name: the model, and the engine's options.
CASES = {
    "qwen3": ("tiny-qwen3", {}),
    "qwen3-tp2": ("tiny-qwen3", {"tensor_parallel_size": 2}),
    "moe": ("tiny-qwen3-moe", {}),
    "moe-tp2": ("tiny-qwen3-moe", {"tensor_parallel_size": 2}),
    "deepseek": ("tiny-deepseek-v3-bf16", {}),
    "deepseek-tp2": ("tiny-deepseek-v3-bf16", {"tensor_parallel_size": 2}),
    "qwen3-pp2": ("tiny-qwen3", {"pipeline_parallel_size": 2}),
    "qwen3-tp2-pp2": (
        "tiny-qwen3",
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ),
    "moe-ep2": ("tiny-qwen3-moe", {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
    "deepseek-ep2": (
        "tiny-deepseek-v3-bf16",
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    ),
    "deepseek-mtp": (
        "tiny-deepseek-v3-mtp",
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    ),
    "llama-eagle-tp2": (
        "tiny-llama-eagle",
        {
            "speculative_config": {"method": "eagle", "num_speculative_tokens": 1},
            "tensor_parallel_size": 2,
        },
    ),
    "qwen2.5-vl-tp2": ("tiny-qwen2.5-vl", {"tensor_parallel_size": 2}),
    "glm-4v": ("tiny-glm-4v", {}),
    "qwen3-served": ("tiny-qwen3", {}),
    "qwen3-at-once": (
        "tiny-qwen3",
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ),
    "qwen3-dp2": ("tiny-qwen3", {"data_parallel_size": 2}),
    "moe-dp2-ep2": ("tiny-qwen3-moe", {"data_parallel_size": 2, "enable_expert_parallel": True}),
}
# Cases that run `vllm serve` and control it over HTTP. In the others the LLM is in the process of trainer 0.
SERVED = {"qwen3-served", "qwen3-at-once", "qwen3-dp2", "moe-dp2-ep2"}
# How a server stops for an update, if not as by default.
PAUSES = {"qwen3-at-once": "at-once"}


def by_rank(digests):
    """Returns the digests of each rank's parameters, which vLLM names as "dp0:pp0:pcp0:tp1:name"."""
    ranks = {}
    for name, digest in sorted(digests.items()):
        rank, _, parameter = name.rpartition(":")
        ranks.setdefault(rank, {})[parameter] = digest
    return list(ranks.values())


def draft_digests(worker):
    """Returns the digests of the parameters of a worker's draft model, if it has one."""
    from checkpoints import DRAFT, digests

    draft = worker.get_draft_model()
    its = {} if draft is None else digests(draft)
    return {f"rank{worker.rank}:{DRAFT}{name}": digest for name, digest in its.items()}


def save_for(model, version, folder, options):
    """Writes a checkpoint, and returns an engine's options, which name the folder of the draft model if there is one."""
    save(model, version, folder)
    if not (folder / "draft").exists():
        return options
    speculates = options["speculative_config"] | {"model": str(folder / "draft")}
    return options | {"speculative_config": speculates}


class Engine:
    """An engine in this process."""

    def __init__(self, model, version, folder, **options):
        from vllm import LLM

        options = save_for(model, version, folder, options)
        self.prompts = [{"prompt_token_ids": PROMPT}]
        config = config_of(model)
        if "vision_config" in config:
            tokens, image = prompt_with_image(config)
            self.prompts.append({"prompt_token_ids": tokens, "multi_modal_data": {"image": image}})
            options = options | {"limit_mm_per_prompt": {"image": 1, "video": 0}}
        else:
            options = options | {"skip_tokenizer_init": True}
        self.llm = self.client = LLM(
            str(folder), enforce_eager=True, max_model_len=128,
            compilation_config={"custom_ops": ["none"]}, **options,
        )  # fmt: skip

    def serves(self):
        """Returns the tokens that the engine generates, and the digests of its parameters for each rank."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=12, temperature=0, detokenize=False)
        done = self.llm.generate(self.prompts, sampling, use_tqdm=False)
        tokens = [token for its in done for token in its.outputs[0].token_ids]
        ranks = self.llm.collective_rpc("compute_weight_checksums")
        ranks += self.llm.collective_rpc(draft_digests)
        digests = {name: digest for its in ranks for name, digest in its.items()}
        return tokens, by_rank(digests)

    def sleep(self, level):
        """Takes the memory of the weights and of the cache away; with level 2, also what is in it."""
        self.llm.sleep(level)

    def wake_up(self, tag):
        """Gives the memory of "weights" or of the "kv_cache" back."""
        self.llm.wake_up([tag])

    def stop(self):
        self.llm.llm_engine.engine_core.shutdown()


class Server:
    """A process of `vllm serve`."""

    def __init__(self, model, version, folder, *, host="127.0.0.1", pause="keep", **options):
        from waybill.integrations.vllm import HTTPClient

        options = save_for(model, version, folder, options)
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
        given = {"port": port, "max_model_len": 128, "enforce_eager": True, **options}
        given |= {"skip_tokenizer_init": True, "compilation_config": {"custom_ops": ["none"]}}
        command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--host", host]
        for name, value in given.items():
            command.append("--" + name.replace("_", "-"))
            if value is not True:
                command.append(json.dumps(value))
        self.process = subprocess.Popen(command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"})
        self.address = f"http://{host}:{port}"
        self.client = HTTPClient(self.address, pause=pause)
        self.model, self.replicas = str(folder), options.get("data_parallel_size", 1)
        self._await_answer()

    def _await_answer(self):
        import requests
        from urllib3.util import Retry

        session = requests.Session()
        retries = Retry(total=60, backoff_factor=0.1, backoff_max=5)  # Three minutes.
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.get(f"{self.address}/health", timeout=5).raise_for_status()

    def serves(self):
        """Returns the tokens that every replica generates, and the digests of the parameters for each rank."""
        body = {"model": self.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        body |= {"return_token_ids": True, "detokenize": False}
        generated = [
            self._post("v1/completions", body, {"X-data-parallel-rank": str(replica)})
            for replica in range(self.replicas)
        ]
        tokens = [answer["choices"][0]["token_ids"] for answer in generated]
        if any(its != tokens[0] for its in tokens):
            sys.exit(f"{self.address}: the replicas generate {tokens}")
        return tokens[0], by_rank(self._post("weight_checker", {"action": "checksum"})["checksums"])

    def _post(self, what, body, headers=None):
        import requests

        answer = requests.post(f"{self.address}/{what}", json=body, headers=headers, timeout=60)
        if not answer.ok:
            sys.exit(f"{self.address}/{what}: {answer.text}")
        return answer.json()

    def sleep(self, level):
        """Takes the memory of the weights and of the cache away; with level 2, also what is in it."""
        self._post(f"sleep?level={level}", None)

    def wake_up(self, tag):
        """Gives the memory of "weights" or of the "kv_cache" back."""
        self._post(f"wake_up?tags={tag}", None)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


class VLLM(Stack):
    """vLLM in the test of updates."""

    def engine(self, case, version, folder, *, updated):
        model, options = self.cases[case]
        backend = {"weight_transfer_config": {"backend": "waybill"}} if updated else {}
        # vLLM runs replicas in servers only.
        served = case in SERVED and (updated or "data_parallel_size" in options)
        if served:
            pause = PAUSES.get(case, "keep")
            return Server(model, version, folder, pause=pause, **options, **backend)
        return Engine(model, version, folder, **options, **backend)

    def sender(self, controller, client, module):
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.base import ModuleSource
        from waybill.integrations.vllm import WaybillInit

        draft = module._modules.pop("draft", None)
        sender = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller, draft=draft, deadline=60),
            client=client,
            source=ModuleSource(module),
        )
        sender.close = sender.shutdown
        return sender


def sleep(folder, case="moe-tp2", kind=Engine):
    """Checks that an engine that sleeps refuses updates, and takes them once its weights have memory.

    An engine that sleeps with level 1 has its old weights when it wakes up. After level 2 it has the version that was sent while
    only the weights were awake.
    """
    import waybill
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import HTTPClient, WaybillInit

    model, options = CASES[case]
    loaded = fresh(__file__, case)
    backend = {"weight_transfer_config": {"backend": "waybill"}}
    engine = kind(model, 0, folder / "model", **options, **backend, enable_sleep_mode=True)
    atexit.register(engine.stop)
    check("loaded", case, engine.serves(), loaded[0])
    asleep = HTTPClient(engine.address, pause=None) if kind is Server else engine.client
    module = as_module(weights(model, 1))
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller.address, rank=0, world=1, deadline=60),
            client=[asleep],
            source=ModuleSource(module),
        )
        for level, version in ((1, 1), (2, 2)):
            for name, tensor in weights(model, version).items():
                module.get_parameter(name).copy_(tensor)
            engine.sleep(level)
            try:
                sender.send_weights()
                sys.exit(f"an engine that sleeps with level {level} was updated")
            except waybill.WaybillError as error:
                if 'the engine sleeps, and "model.' not in str(error):
                    sys.exit(f"level {level}: {error}")
                print(f"{case}: refused: {error}", flush=True)
            engine.wake_up("weights")
            if level == 2:
                sender.send_weights()
            engine.wake_up("kv_cache")
            shown = 0 if level == 1 else version
            check(f"woke up from level {level}", case, engine.serves(), loaded[shown])
        sender.shutdown()


def sleep_served(folder):
    """Does the same with a server."""
    sleep(folder, "qwen3-served", Server)


def send_exported(folder):
    """Sends the weights of transformers' own model, which stacks the experts, by transformers' own export."""
    import torch
    import waybill
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from waybill.integrations.vllm import ExportSource, WaybillInit

    def trained(version):
        save(model, version, folder / str(version))
        return AutoModelForCausalLM.from_pretrained(folder / str(version), dtype=torch.bfloat16)

    case = "moe-tp2"
    model, options = CASES[case]
    loaded = fresh(__file__, case)
    backend = {"weight_transfer_config": {"backend": "waybill"}}
    engine = Engine(model, 0, folder / "model", **options, **backend)
    atexit.register(engine.stop)
    module = trained(1)
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller.address, rank=0, world=1, deadline=60),
            client=engine.client,
            source=ExportSource(
                module, lambda twin: revert_weight_conversion(twin, twin.state_dict())
            ),
        )
        sender.send_weights()
        check("exported version 1", case, engine.serves(), loaded[1])
        module.load_state_dict(trained(2).state_dict())
        sender.send_weights()
        check("exported version 2", case, engine.serves(), loaded[2])
        sender.shutdown()


def fleet(folder, engines=4, updates=5):
    """Checks that several servers of one sender switch together, and prints how far apart."""
    import waybill
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import WaybillInit

    model = "tiny-qwen3"
    backend = {"weight_transfer_config": {"backend": "waybill"}}
    servers = []
    for number in range(engines):
        servers.append(Server(model, 0, folder / str(number), **backend))
        atexit.register(servers[-1].stop)
    module = as_module(weights(model, 1))
    spreads = []
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller.address, rank=0, world=1, deadline=60),
            client=[server.client for server in servers],
            source=ModuleSource(module),
        )
        for version in range(1, updates + 1):
            for name, tensor in weights(model, version).items():
                module.get_parameter(name).copy_(tensor)
            sender.send_weights()
            spreads.append(1e3 * sender.last_switch.spread)
            served = [server.serves() for server in servers]
            if any(its != served[0] for its in served):
                sys.exit(f"version {version}: the engines serve {[tokens for tokens, _ in served]}")
            parameters = sum(len(rank) for _, ranks in served for rank in ranks)
            if sender.compare_engines() != parameters * (engines - 1) // engines:
                sys.exit(f"version {version}: not all of {parameters} parameters were compared")
        sender.shutdown()
    shown = ", ".join(f"{spread:.0f}" for spread in spreads)
    print(f"{engines} engines switched within {shown} ms of each other (target 20)", flush=True)


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
        "a tensor that nobody loads": right
        | {"model.layers.9.mlp.up_proj.weight": right[norm].clone()},
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


if __name__ == "__main__":
    more = {
        "refused": refuse,
        "exported": send_exported,
        "fleet": fleet,
        "asleep": sleep,
        "asleep-served": sleep_served,
    }
    main(VLLM(CASES, more), __file__, __doc__)
