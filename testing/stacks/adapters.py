# SPDX-License-Identifier: Apache-2.0
"""The test of LoRA adapters that every engine has to pass.

A trainer with a model of peft sends two versions of an adapter while requests run. Each version has to generate what the engine
generates with the adapter that peft has saved to disk, also after the engine has evicted it.
"""

import sys
import threading

from checkpoints import as_module, weights

MODEL = "tiny-qwen3"
RANK = 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def model_of_peft(folder, rank=RANK):
    """Returns transformers' model with a LoRA adapter, as one shard of FSDP2."""
    import torch
    import torch.distributed as dist
    from peft import LoraConfig, get_peft_model
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=32, target_modules=TARGETS))
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    fully_shard(model)
    return model


def train(model, version):
    """Gives the adapter the values of a version."""
    import torch

    generator = torch.Generator().manual_seed(version)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            values = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.data.to_local().copy_(values)


class Requests(threading.Thread):
    """Asks a server again and again, without an adapter."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.answers, self.stops = server, [], False

    def run(self):
        while not self.stops:
            self.answers.append(self.server.generate(None))


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {found}, and not {wanted}")
    print(f"{what}: {found}", flush=True)


def sent_bytes(controller):
    """Returns the bytes of the last version that left the trainer."""
    import waybill

    (trainer,) = (rank for rank in waybill.query(controller.address)["ranks"] if not rank["group"])
    return trainer["moved_bytes"]


def send_adapters(engine, sender_of, model, folder):
    """Sends two versions of an adapter, and returns what the engine generates with the last one.

    engine     Has `client`; generate(name) returns the tokens of an adapter, or of the model for None; served(sender) the name of
               what was sent last; and load(name, folder) loads an adapter from disk. It has room for one adapter.
    sender_of  Called with a controller, a client, a model and adapter="policy", it returns a sender.
    """
    import waybill

    with waybill.Controller(listen="127.0.0.1:0") as controller:
        sender = sender_of(controller, engine.client, model, adapter="policy")
        before = engine.generate(None)
        for version in (1, 2):
            train(model, version)
            saved = folder / f"{type(engine).__name__}{version}"
            whole = {name: shard.full_tensor() for name, shard in model.state_dict().items()}
            model.save_pretrained(saved, state_dict=whole)
            sender.send_weights()
            tokens = engine.generate(engine.served(sender))
            engine.load(f"disk{version}", saved)
            expect(f"adapter {version}", tokens, engine.generate(f"disk{version}"))
            if tokens == before:
                sys.exit("the adapter changes nothing")
            again = engine.generate(engine.served(sender))
            expect(f"adapter {version}, once evicted", again, tokens)
            size = (saved / "adapter_model.safetensors").stat().st_size
            share = sent_bytes(controller) / size
            print(
                f"adapter {version}: {share:.3f} of its bytes were sent (target 1.05)", flush=True
            )
            if share > 1.05:
                sys.exit("too much was sent")
        expect("without an adapter", engine.generate(None), before)
        sender.close()
    return tokens


def run(engine, sender_of, base, folder, too_large):
    """Runs the test, and returns what the engine generates with the last version of the adapter.

    base       The folder of the model.
    too_large  What is said of an adapter whose rank is too large; None: the engine is not asked.
    """
    import waybill

    asking = Requests(engine) if engine.at_once else None
    if asking is not None:
        asking.start()
    tokens = send_adapters(engine, sender_of, model_of_peft(base), folder)
    if asking is not None:
        asking.stops = True
        asking.join(60)
        if not asking.answers or any(its != asking.answers[0] for its in asking.answers):
            sys.exit(f"requests without an adapter were disturbed: {asking.answers}")
        print(f"{len(asking.answers)} requests without an adapter ran meanwhile", flush=True)
    wrong = [("no adapter", "no active LoRA adapter", as_module(weights(MODEL, 1)))]
    if too_large is not None:
        wrong.append(("a rank that is too large", too_large, model_of_peft(base, 2 * RANK)))
    for what, said, model in wrong:
        with waybill.Controller(listen="127.0.0.1:0") as controller:
            try:
                sender_of(controller, engine.client, model, adapter="policy").send_weights()
            except Exception as error:
                if said not in str(error):
                    sys.exit(f"{what}: {error}")
                print(f"refused: {what}: {error}", flush=True)
            else:
                sys.exit(f"{what}: was not refused")
    return tokens
