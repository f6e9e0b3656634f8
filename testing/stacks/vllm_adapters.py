# SPDX-License-Identifier: Apache-2.0
"""Tests LoRA adapters: vLLM serves an adapter that a trainer with a model of peft sends through Waybill.

    python vllm_adapters.py

adapters.py says what happens to a server and to an LLM. The server also gets new weights below its adapter.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"

import requests
from adapters import MODEL, RANK, expect, run
from checkpoints import as_module, weights
from vllm_updates import PROMPT, Engine, Server

OPTIONS = {
    "enable_lora": True, "max_lora_rank": RANK, "max_loras": 1, "max_cpu_loras": 1,
    "weight_transfer_config": {"backend": "waybill"},
}  # fmt: skip


def sender_of(controller, client, model, **options):
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import WaybillInit

    sender = WeightTransferTrainerFactory.trainer_init(
        WaybillInit(controller.address, rank=0, world=1, deadline=60, **options),
        client=client,
        source=ModuleSource(model),
    )
    sender.close = sender.shutdown
    return sender


class Served(Server):
    """A server, which is asked for adapters by their names."""

    at_once = True

    def served(self, sender):
        return "policy"

    def generate(self, name):
        body = {"model": name or self.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        body |= {"return_token_ids": True, "detokenize": False}
        return self._post("v1/completions", body)["choices"][0]["token_ids"]

    def load(self, name, folder):
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        answer = requests.post(f"{self.address}/v1/load_lora_adapter", json=body, timeout=60)
        answer.raise_for_status()


class InProcess(Engine):
    """An LLM, which is given adapters with each request."""

    at_once = False

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.adapters = {}

    def served(self, sender):
        return sender.lora_request

    def generate(self, name):
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=12, temperature=0, detokenize=False)
        adapter = self.adapters.get(name) if isinstance(name, str) else name
        prompt = {"prompt_token_ids": PROMPT}
        done = self.llm.generate([prompt], sampling, use_tqdm=False, lora_request=adapter)
        return list(done[0].outputs[0].token_ids)

    def load(self, name, folder):
        from vllm.lora.request import LoRARequest

        self.adapters[name] = LoRARequest(name, 7 + len(self.adapters), str(folder))


def serve(kind, folder, too_large):
    """Runs the test with a kind of engine, and returns the engine and what it generates with the last adapter."""
    base = folder / kind.__name__
    engine = kind(MODEL, 0, base, **OPTIONS)
    atexit.register(engine.stop)
    return engine, run(engine, sender_of, base, folder, too_large)


def update_below(engine, folder):
    """Sends new weights to an engine with an adapter, and returns what it generates."""
    import waybill

    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = sender_of(controller, engine.client, as_module(weights(MODEL, 1)))
        sender.send_weights()
        sender.close()
    found = engine.generate(None), engine.generate("disk2")
    engine.stop()
    return found


def be_fresh(folder):
    """Prints what an engine generates that has loaded the new weights and the adapter from disk."""
    engine = InProcess(MODEL, 1, folder / "fresh", **OPTIONS)
    engine.load("disk2", folder / "Served2")
    print("fresh " + json.dumps([engine.generate(None), engine.generate("disk2")]), flush=True)
    engine.stop()


def main():
    if len(sys.argv) > 1:
        return be_fresh(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, served = serve(Served, folder, "the server's log")
        found = update_below(server, folder)
        command = [sys.executable, __file__, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        (fresh,) = (line[6:] for line in done.stdout.splitlines() if line.startswith("fresh "))
        expect("new weights below the adapter", list(found), json.loads(fresh))
        llm, generated = serve(InProcess, folder, "LoRA rank 32")
        expect("an LLM", generated, served)
        llm.stop()


if __name__ == "__main__":
    main()
