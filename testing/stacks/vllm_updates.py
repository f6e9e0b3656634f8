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
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_MLA_DISABLE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_TARGET_DEVICE="cpu",
)

from checkpoints import as_module, digests, save, weights
from updates import PROMPT, Stack, check, main

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
        retries = Retry(total=60, backoff_factor=0.1, backoff_max=5)  # Three minutes.
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


class VLLM(Stack):
    """vLLM in the test of updates."""

    def engine(self, case, version, folder, *, updated):
        model, options = self.cases[case]
        backend = {"weight_transfer_config": {"backend": "waybill"}} if updated else {}
        kind = Server if updated and case in SERVED else Engine
        return kind(model, version, folder, **options, **backend)

    def sender(self, controller, client, module):
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.base import ModuleSource
        from waybill.integrations.vllm import WaybillInit

        sender = WeightTransferTrainerFactory.trainer_init(
            WaybillInit(controller, deadline=60), client=client, source=ModuleSource(module)
        )
        sender.close = sender.shutdown
        return sender


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


if __name__ == "__main__":
    main(VLLM(CASES, {"refused": refuse}), __file__, __doc__)
