# SPDX-License-Identifier: Apache-2.0
"""Tests LoRA adapters: SGLang serves an adapter that a trainer with a model of peft sends through Waybill.

    python sglang_adapters.py

adapters.py says what happens to a server and to an engine in this process.
"""

import atexit
import tempfile
from pathlib import Path

import sglang_settings  # noqa: F401
from adapters import MODEL, RANK, expect, run
from sglang_updates import Engine, Server
from updates import PROMPT

OPTIONS = {
    "enable_lora": True, "max_lora_rank": RANK, "lora_target_modules": "all", "max_loras_per_batch": 2,
    "max_loaded_loras": 2, "lora_backend": "torch_native",
}  # fmt: skip
SAMPLING = {"max_new_tokens": 12, "temperature": 0}


def sender_of(controller, client, model, **options):
    from waybill.integrations.sglang import WeightSender

    return WeightSender(controller.address, model, client, rank=0, world=1, deadline=60, **options)


class Served(Server):
    """A server."""

    at_once = True

    def served(self, sender):
        return sender.served_adapter

    def generate(self, name):
        body = {"input_ids": PROMPT, "sampling_params": SAMPLING}
        if name is not None:
            body["lora_path"] = name
        return self.client._call("generate", body)["output_ids"]

    def load(self, name, folder):
        self.client._load_adapter(name, str(folder))


class InProcess(Engine):
    """An engine in this process."""

    at_once = False

    def served(self, sender):
        return sender.served_adapter

    def generate(self, name):
        done = self.engine.generate(
            input_ids=[PROMPT], sampling_params=SAMPLING, lora_path=None if name is None else [name]
        )
        return list(done[0]["output_ids"])

    def load(self, name, folder):
        self.engine.load_lora_adapter(name, str(folder))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder, generated = Path(name), []
        for kind in (Served, InProcess):
            base = folder / kind.__name__
            options = OPTIONS if kind is Served else OPTIONS | {"lora_target_modules": ["all"]}
            engine = kind(MODEL, 0, base, **options)
            atexit.register(engine.stop)
            generated.append(run(engine, sender_of, base, folder, "rank"))
            engine.stop()
        expect("an engine in this process", generated[1], generated[0])


if __name__ == "__main__":
    main()
