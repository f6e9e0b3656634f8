# SPDX-License-Identifier: Apache-2.0
"""The example of a trainer runs as it is shown, on stand-ins for vLLM, its server and transformers, with a real job."""

import collections
import dataclasses
import functools
import importlib
import importlib.util
import socket
import sys

import pytest
from one_process_job import Job
from stand_in_modules import stand_in
from vllm_stand_in import Engine

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class TrainerInitInfo:
    """vLLM's, by which rank 0 is the one that controls the engines."""

    @property
    def is_sender(self):
        return self.rank == 0


class TrainerWeightTransferEngine:
    def __init__(self, *, client, source, is_sender, rank):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank


class ModuleSource:
    def __init__(self, module):
        self._module = module


class Factory:
    """vLLM's factory, with the one backend that is here."""

    def __init__(self):
        self._registry = {}

    def register_engine(self, name, module, kind):
        self._registry[name] = (module, kind)

    def trainer_init(self, init_info, **arguments):
        module, kind = self._registry[init_info.backend]
        return getattr(importlib.import_module(module), kind).trainer_init(init_info, **arguments)


# FSDP2 finds the loss in what a model returns, as in transformers' outputs.
Output = collections.namedtuple("Output", ["loss"])


class TinyModel(torch.nn.Module):
    made = []

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(1000, 8)
        self.head = torch.nn.Linear(8, 1000, bias=False)
        TinyModel.made.append(self)

    @classmethod
    def from_pretrained(cls, name):
        assert name == "MODEL"
        return cls()

    @property
    def device(self):
        return self.head.weight.device

    def forward(self, tokens, labels):
        scores = self.head(self.embed(tokens)).flatten(0, 1)
        return Output(torch.nn.functional.cross_entropy(scores, labels.flatten()))


@pytest.fixture
def example(monkeypatch):
    module = functools.partial(stand_in, monkeypatch)
    trainers = Factory()
    transfer = "vllm.distributed.weight_transfer"
    for name in ("vllm", "vllm.distributed"):
        module(name)
    module(transfer, WeightTransferTrainerFactory=trainers)
    module(
        f"{transfer}.factory",
        WeightTransferTrainerFactory=trainers,
        WeightTransferEngineFactory=Factory(),
    )
    module(
        f"{transfer}.base",
        ModuleSource=ModuleSource,
        ParamMeta=None,
        Shard=None,
        TrainerInitInfo=TrainerInitInfo,
        TrainerWeightTransferEngine=TrainerWeightTransferEngine,
        WeightSource=object,
    )
    module("waybill.integrations.vllm.clients", HTTPClient=Engine, client_of_one=lambda it: it)
    module("transformers", AutoModelForCausalLM=TinyModel)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}
    for name, value in rank.items():
        monkeypatch.setenv(name, str(value))
    spec = importlib.util.spec_from_file_location("example", "examples/python/vllm_trainer.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    yield found
    for engine in Engine.made:
        engine.leave()
    sys.modules.pop("waybill.integrations.vllm.trainer", None)


def test_the_server_has_the_weights_of_the_last_step(example):
    with Job() as job:
        example.main("MODEL", job.controller.address, "http://engine:8000", steps=2)
        (engine,) = Engine.made
        (model,) = TinyModel.made
        assert engine.calls == 2 * ["pause", "start", "finish", "resume"]
        assert engine.tensors.keys() == {"embed.weight", "head.weight"}
        for name, parameter in model.named_parameters():
            assert torch.equal(engine.tensors[name], parameter.to_local().detach())
