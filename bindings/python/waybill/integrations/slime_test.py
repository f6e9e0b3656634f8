# SPDX-License-Identifier: Apache-2.0
"""slime's weight updater on stand-ins for slime, Megatron and Ray, with a real job and SGLang's HTTP interface."""

import functools
import sys
import types

import pytest
from one_process_job import Job
from sglang_server import Server, record_live_models
from stand_in_modules import stand_in

import waybill

torch = pytest.importorskip("torch")

CHUNKS = [[("gate", 1.0), ("norm", 2.0)], [("up", 3.0)]]


class Model(torch.nn.Module):
    """A served model of three tensors."""

    def __init__(self):
        super().__init__()
        for name in ("gate", "norm", "up"):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(4), requires_grad=False))

    def load_weights(self, items):
        for name, tensor in items:
            getattr(self, name).data.copy_(tensor)


class UpdaterOfSlime:
    """The part of slime's updater that Waybill's one uses: two iterators over chunks of tensors."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.weight_version = 0
        self.step = 0.0

    def _chunk(self, index):
        return [(name, torch.full((4,), value + self.step)) for name, value in CHUNKS[index]]

    def _iter_non_expert_chunks(self):
        yield self._chunk(0)

    def _iter_expert_chunks(self):
        yield self._chunk(1)


class EngineActor:
    """An actor of an SGLang engine, of which slime asks the address."""

    def __init__(self, url):
        self.get_url = types.SimpleNamespace(remote=lambda: url)


@pytest.fixture
def slime(monkeypatch, tmp_path):
    """Waybill's module, with what it imports of slime, Megatron and Ray."""

    module = functools.partial(stand_in, monkeypatch)

    mpu = module(
        "megatron.core.mpu",
        get_data_parallel_rank=lambda with_context_parallel: 0,
        get_tensor_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_world_size=lambda: 1,
    )
    module("megatron")
    module("megatron.core", mpu=mpu)
    module("ray", get=lambda references: references)
    where = "slime.backends.megatron_utils"
    actor = module(f"{where}.actor", UpdateWeightFromDistributed=UpdaterOfSlime)
    for name in ("slime", "slime.backends", "slime.utils", f"{where}.update_weight"):
        module(name)
    module(where, actor=actor)
    module(
        f"{where}.update_weight.update_weight_from_distributed",
        UpdateWeightFromDistributed=UpdaterOfSlime,
    )
    module("slime.utils.distributed_utils", get_gloo_group=lambda: None)
    monkeypatch.delitem(sys.modules, "waybill.integrations.slime", raising=False)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    import waybill.integrations.slime as under_test

    yield under_test
    torch.distributed.destroy_process_group()
    monkeypatch.delitem(sys.modules, "waybill.integrations.slime")


@pytest.fixture
def server(monkeypatch):
    record_live_models(monkeypatch)
    with Server(Model()) as server:
        yield server
        server.shutdown()


def assert_served(server, step):
    for name, value in [pair for chunk in CHUNKS for pair in chunk]:
        assert torch.equal(getattr(server.model, name), torch.full((4,), value + step)), name


def test_engines_serve_what_the_actor_gathers(slime, server, monkeypatch):
    with Job() as job:
        monkeypatch.setenv("WAYBILL_CONTROLLER", job.controller.address)
        updater = slime.UpdateWeightFromWaybill(None, None)
        job.callback(updater.disconnect_rollout_engines)
        updater.connect_rollout_engines([EngineActor(server.url), EngineActor(None)], None)
        for step in (0.0, 10.0):
            updater.step = step
            updater.update_weights()
            assert_served(server, step)
        assert updater.weight_version == 2
        updater.connect_rollout_engines([EngineActor(server.url)], None)  # Engines have changed.
        updater.step = 20.0
        updater.update_weights()
        assert_served(server, 20.0)
        assert updater.weight_version == 3


def test_without_a_controller_the_error_names_the_variable(slime, server, monkeypatch):
    monkeypatch.delenv("WAYBILL_CONTROLLER", raising=False)
    updater = slime.UpdateWeightFromWaybill(None, None)
    updater.connect_rollout_engines([EngineActor(server.url)], None)
    with pytest.raises(waybill.InvalidArgument, match="WAYBILL_CONTROLLER is not set"):
        updater.update_weights()


def test_installing_replaces_the_updater_of_slimes_actors(slime):
    slime.install()
    from slime.backends.megatron_utils import actor

    assert actor.UpdateWeightFromDistributed is slime.UpdateWeightFromWaybill
