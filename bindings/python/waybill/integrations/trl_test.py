# SPDX-License-Identifier: Apache-2.0
"""What is installed into TRL, on stand-ins for TRL, transformers, accelerate and the vLLM server, with a real job."""

import functools
import sys
import types

import pytest
from one_process_job import PATIENCE, Job
from stand_in_modules import stand_in
from vllm_stand_in import Engine

import waybill

torch = pytest.importorskip("torch")


class VLLMGeneration:
    """The part of TRL's class that is used or replaced."""

    def __init__(self, model, mode="server"):
        self.model, self.mode, self.accelerator = model, mode, ACCELERATOR
        self.colocated = 0
        if mode == "server":
            self.vllm_client = VLLMClient()
            self.vllm_client.init_communicator(device="cpu")

    def sync_weights(self):
        self.colocated += 1


class VLLMClient:
    base_url = "http://engine:8000"

    def init_communicator(self, device=0):
        raise AssertionError("NCCL")


class AsyncGRPOTrainer:
    """The sync of TRL's trainer, as rank 0 runs it."""

    def __init__(self, model, weight_transfer):
        self.model, self.weight_transfer, self.accelerator = model, weight_transfer, ACCELERATOR

    def _streaming_iter(self):
        raise AssertionError("the weights are gathered")

    def sync(self):
        self.weight_transfer.pause()
        self.weight_transfer.send_weights(self._streaming_iter())
        self.weight_transfer.resume()


ACCELERATOR = types.SimpleNamespace(
    process_index=0, num_processes=1, is_main_process=True, unwrap_model=lambda model: model
)


class Adapted(torch.nn.Module):
    """A model that peft has wrapped: its layer adds 1 when it is merged."""

    prefix = "lora_"

    def __init__(self):
        super().__init__()
        self.q = torch.nn.Module()
        self.q.base_layer = torch.nn.Linear(4, 4, bias=False)
        self.q.lora_A = torch.nn.Linear(4, 2, bias=False)

    def get_base_model(self):
        return self

    def merge_adapter(self):
        self.q.base_layer.weight.data += 1

    def unmerge_adapter(self):
        self.q.base_layer.weight.data -= 1


@pytest.fixture
def trl(monkeypatch):
    """Waybill's module, with what it imports of TRL, transformers, accelerate and vLLM."""

    module = functools.partial(stand_in, monkeypatch)

    where = "trl.experimental.async_grpo"
    for name in ("trl", "trl.generation", "trl.experimental", where, "accelerate", "transformers"):
        module(name)
    backend = types.SimpleNamespace(is_zero3=False, fsdp_version=None)
    module("trl.distributed", DistributedBackend=lambda accelerator: backend)
    module("trl.generation.vllm_client", VLLMClient=type("VLLMClient", (VLLMClient,), {}))
    module(
        "trl.generation.vllm_generation",
        VLLMGeneration=type("VLLMGeneration", (VLLMGeneration,), {}),
    )
    module(
        f"{where}.async_grpo_trainer",
        AsyncGRPOTrainer=type("AsyncGRPOTrainer", (AsyncGRPOTrainer,), {}),
    )
    module("accelerate.utils", is_peft_model=lambda model: isinstance(model, Adapted))
    module("transformers.core_model_loading", revert_weight_conversion=lambda model, its: its)
    module("waybill.integrations.vllm.clients", HTTPClient=Engine)
    monkeypatch.setattr(
        sys.modules[__name__], "VLLMClient", sys.modules["trl.generation.vllm_client"].VLLMClient
    )
    import waybill.integrations.trl as under_test

    under_test.backend = backend
    Engine.made.clear()
    yield under_test
    for engine in Engine.made:
        engine.leave()


def generation(model, **options):
    return sys.modules["trl.generation.vllm_generation"].VLLMGeneration(model, **options)


def test_each_sync_makes_the_server_have_the_weights(trl):
    model = torch.nn.Linear(4, 4)
    with Job() as job:
        trl.install(job.controller.address, deadline=PATIENCE)
        vllm = generation(model)
        for step in (1.0, 2.0):
            model.weight.data.fill_(step)
            vllm.sync_weights()
            (engine,) = Engine.made
            assert engine.address == "http://engine:8000"
            assert engine.tensors.keys() == {"weight", "bias"}
            assert torch.equal(engine.tensors["weight"], model.weight)
        assert engine.calls == 2 * ["pause", "start", "finish", "resume"]
        vllm._waybill.close()


def test_the_base_layers_of_peft_are_sent_merged_and_trained_as_they_were(trl):
    model = Adapted()
    before = model.q.base_layer.weight.detach().clone()
    with Job() as job:
        trl.install(job.controller.address, deadline=PATIENCE)
        vllm = generation(model)
        vllm.sync_weights()
        (engine,) = Engine.made
        assert engine.tensors.keys() == {"q.weight"}
        assert torch.equal(engine.tensors["q.weight"], before + 1)
        assert torch.allclose(model.q.base_layer.weight, before, atol=1e-6)
        vllm._waybill.close()


def test_the_asynchronous_trainer_gathers_nothing(trl):
    model = torch.nn.Linear(4, 4)
    with Job() as job:
        transfer = trl.WeightTransfer(
            job.controller.address, "http://other:8000", deadline=PATIENCE
        )
        trainer = sys.modules["trl.experimental.async_grpo.async_grpo_trainer"].AsyncGRPOTrainer(
            model, transfer
        )
        transfer.init_weight_transfer()
        assert transfer.last_switch is None
        trainer.sync()
        (engine,) = Engine.made
        assert engine.address == "http://other:8000"
        assert torch.equal(engine.tensors["weight"], model.weight)
        assert transfer.last_switch.version == 1
        transfer.destroy()


def test_a_colocated_engine_is_left_to_trl(trl):
    trl.install("controller:7070")
    vllm = generation(torch.nn.Linear(4, 4), mode="colocate")
    vllm.sync_weights()
    assert vllm.colocated == 1 and not Engine.made


@pytest.mark.parametrize("flat", [{"is_zero3": True}, {"fsdp_version": 1}])
def test_shards_of_flat_memory_are_refused(trl, flat):
    trl.backend.__dict__.update(flat)
    trl.install("controller:7070")
    with pytest.raises(waybill.Unimplemented, match="train with FSDP2"):
        generation(torch.nn.Linear(4, 4)).sync_weights()
