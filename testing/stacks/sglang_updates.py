# SPDX-License-Identifier: Apache-2.0
"""Tests updates of running engines: the published SGLang, with its weights sent by trainers through Waybill.

    python sglang_updates.py            runs every case
    python sglang_updates.py CASE...    runs the named cases

updates.py says what happens in a case.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import sglang_settings  # noqa: F401
from checkpoints import as_module, save, weights
from updates import PROMPT, Stack, check, main

# The cases by name: the model, and the engine's options.
CASES = {
    "qwen3": ("tiny-qwen3", {}),
    "qwen3-tp2": ("tiny-qwen3", {"tp_size": 2}),
    "moe": ("tiny-qwen3-moe", {}),
    "moe-tp2": ("tiny-qwen3-moe", {"tp_size": 2}),
    "deepseek": ("tiny-deepseek-v3-bf16", {}),
    "qwen2.5-vl-tp2": ("tiny-qwen2.5-vl", {"tp_size": 2}),
    "glm-4v": ("tiny-glm-4v", {}),
    "qwen3-served": ("tiny-qwen3", {}),
}
# Cases that run a server and control it over HTTP. In the others the engine is in the process of trainer 0.
SERVED = {"qwen3-served"}
# SGLang has no attention in torch for it, so that only parameters are compared.
WITHOUT_TOKENS = {"tiny-deepseek-v3-bf16"}
RECEIVE = "waybill.integrations.sglang.receive"
# Writes the digests of a model's parameters to the file that it is given the name of.
DIGESTS = "sglang_cpu_kernels.write_digests"
OPTIONS = {
    "device": "cpu",
    "dtype": "bfloat16",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "context_length": 128,
    "max_total_tokens": 4096,
    "mem_fraction_static": 0.1,
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
    "disable_custom_all_reduce": True,
    "disable_overlap_schedule": True,
    "skip_server_warmup": True,
    "log_level": "error",
}


class Engine:
    """An engine in this process."""

    def __init__(self, model, version, folder, **options):
        import sglang

        save(model, version, folder)
        self.generates = model not in WITHOUT_TOKENS
        self.ranks = options.get("tp_size", 1)
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(["0"] * self.ranks)
        self.client = self.engine = sglang.Engine(
            model_path=str(folder), custom_weight_loader=[RECEIVE, DIGESTS], **OPTIONS, **options
        )

    def serves(self):
        """Returns the tokens that the engine generates, and the digests of its parameters for each rank."""
        if not self.generates:
            return [], self._digests()
        sampling = {"max_new_tokens": 12, "temperature": 0}
        done = self.engine.generate(input_ids=[PROMPT], sampling_params=sampling)
        return list(done[0]["output_ids"]), self._digests()

    def _digests(self):
        import torch

        with tempfile.TemporaryDirectory() as folder:
            self.engine.begin_weight_update("target")
            self.engine.update_weights_from_tensor(
                [(f"{folder}/digests", torch.zeros(1))], load_format=DIGESTS, flush_cache=False
            )
            self.engine.end_weight_update()
            return [
                json.loads(Path(folder, f"digests{rank}").read_text()) for rank in range(self.ranks)
            ]

    def stop(self):
        self.engine.shutdown()


class Server:
    """A process of sglang.launch_server. Its parameters are not read."""

    def __init__(self, model, version, folder, **options):
        from waybill.integrations.sglang import HTTPClient

        save(model, version, folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder)]
        command += ["--port", str(port), "--custom-weight-loader", RECEIVE]
        for name, value in {**OPTIONS, **options}.items():
            command.append("--" + name.replace("_", "-"))
            if value is not True:
                command.append(str(value))
        self.process = subprocess.Popen(command)
        self.address = f"http://127.0.0.1:{port}"
        self.client = HTTPClient(self.address)
        self._await_answer()

    def _await_answer(self):
        import requests
        from urllib3.util import Retry

        session = requests.Session()
        retries = Retry(total=90, status_forcelist=[503], backoff_factor=0.1, backoff_max=5)
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.get(f"{self.address}/health", timeout=5).raise_for_status()

    def serves(self):
        """Returns the tokens that the server generates, and None."""
        import requests

        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 12, "temperature": 0}}
        answer = requests.post(f"{self.address}/generate", json=body, timeout=60)
        if not answer.ok:
            sys.exit(f"{self.address}: {answer.text}")
        return answer.json()["output_ids"], None

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


class SGLang(Stack):
    """SGLang in the test of updates."""

    def engine(self, case, version, folder, *, updated):
        model, options = self.cases[case]
        kind = Server if updated and case in SERVED else Engine
        return kind(model, version, folder, **options)

    def sender(self, controller, client, module):
        from waybill.integrations.sglang import WeightSender

        return WeightSender(controller, module, client, deadline=60)


def refuse(folder):
    """Checks that wrong input is refused with an error that names it, and that the engine then serves as before."""
    import waybill
    from waybill.integrations.sglang import WeightSender

    engine = Engine("tiny-qwen3", 0, folder / "model")
    before = engine.serves()
    right = weights("tiny-qwen3", 1)
    norm = "model.layers.0.input_layernorm.weight"
    wrong = {
        "another model": (weights("tiny-qwen3-moe", 1), "mlp"),
        "a parameter that nothing fills": ({n: t for n, t in right.items() if n != norm}, norm),
        "another shape": (right | {norm: right[norm][:-1]}, norm),
    }
    for what, (tensors, named) in wrong.items():
        with waybill.Controller(listen="127.0.0.1:0") as controller:
            try:
                sender = WeightSender(
                    controller.address,
                    as_module(tensors),
                    engine.client,
                    rank=0,
                    world=1,
                    deadline=60,
                )
                sender.send_weights()
                sys.exit(f"{what}: was not refused")
            except waybill.WaybillError as error:
                if named not in str(error):
                    sys.exit(f"{what}: {error}")
                print(f"refused: {what}: {error}", flush=True)
            check(what, "refused", engine.serves(), before)
    engine.stop()


if __name__ == "__main__":
    main(SGLang(CASES, {"refused": refuse}), __file__, __doc__)
