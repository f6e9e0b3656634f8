# SPDX-License-Identifier: Apache-2.0
"""SkyRL's policy workers on stand-ins for SkyRL, Ray, transformers and the vLLM servers, with a real job."""

import asyncio
import functools
import sys
import types

import pytest
from one_process_job import PATIENCE
from stand_in_modules import stand_in
from vllm_stand_in import Engine

import waybill

torch = pytest.importorskip("torch")
UNDER_TEST = [f"waybill.integrations.{name}" for name in ("ray", "skyrl", "skyrl_servers")]
SERVERS = types.SimpleNamespace(server_urls=["http://one:8000", "http://two:8000"])


class FSDPPolicyWorkerBase:
    """The part of SkyRL's worker that is used."""

    _is_multimodal_lm_only = False

    def __init__(self, model):
        self.model = types.SimpleNamespace(model=model)
        self.cfg = types.SimpleNamespace(
            fully_async=types.SimpleNamespace(enabled=False, clear_kv_cache_on_weight_sync=False)
        )


class WorkerDispatch:
    """The part of SkyRL's dispatch that is used or replaced."""

    def __init__(self, client):
        self._inference_engine_client, self.sent = client, []

    def _broadcast_to_inference_engines(self, client, model_id=None):
        self.sent.append((client, model_id))

    async def save_weights_for_sampler(self, model_id=None):
        raise AssertionError("SkyRL pauses the servers")


class VLLMServerActor:
    """The part of SkyRL's server that is used: it makes a socket as vLLM 0.23 does."""

    def __init__(self, address):
        self.address = address

    def listen(self):
        from skyrl.backends.skyrl_train.inference_servers import vllm_server_actor

        return vllm_server_actor.create_server_socket(self.address)


class SkyRLGymGenerator:
    """The part of SkyRL's generator that is replaced."""

    def __init__(self, salt):
        self.salt = salt

    def _compute_cache_salt(self):
        return self.salt


class Task:
    """What ray.remote makes of a function."""

    def __init__(self, function):
        self.remote = function


def config(**changed):
    """Returns a configuration of SkyRL that can be served, or one in which a value is another one."""
    values = {
        "strategy": "fsdp",
        "colocate_all": False,
        "rank": 0,
        "data_parallel_size": 1,
    } | changed
    space = types.SimpleNamespace
    return space(
        trainer=space(
            strategy=values["strategy"],
            placement=space(colocate_all=values["colocate_all"]),
            policy=space(model=space(lora=space(rank=values["rank"]))),
        ),
        generator=space(
            inference_engine=space(
                data_parallel_size=values["data_parallel_size"],
                enable_prefix_caching=True,
                engine_init_kwargs={},
            )
        ),
    )


@pytest.fixture
def skyrl(monkeypatch, tmp_path):
    """Waybill's module, with what it imports of SkyRL, Ray, transformers and vLLM."""

    module = functools.partial(stand_in, monkeypatch)

    def remote(**options):
        return lambda made: Task(made) if isinstance(made, types.FunctionType) else (made, options)

    util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    module("ray", remote=remote, util=util)
    where = "skyrl.backends.skyrl_train.workers"
    for name in ("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train", "transformers"):
        module(name)
    worker = module(f"{where}.fsdp.fsdp_worker", FSDPPolicyWorkerBase=FSDPPolicyWorkerBase)
    module(f"{where}.fsdp", fsdp_worker=worker)
    dispatch = module(
        f"{where}.worker_dispatch", WorkerDispatch=type("WorkerDispatch", (WorkerDispatch,), {})
    )
    module(where, worker_dispatch=dispatch)
    where = "skyrl.backends.skyrl_train.inference_servers"
    server = module(
        f"{where}.vllm_server_actor",
        VLLMServerActor=VLLMServerActor,
        create_server_socket=lambda address, *, reuse_port: (address, reuse_port),
    )
    module(where, vllm_server_actor=server)
    for name in ("skyrl.train", "skyrl.train.generators"):
        module(name)
    module(
        "skyrl.train.generators.skyrl_gym_generator",
        SkyRLGymGenerator=type("SkyRLGymGenerator", (SkyRLGymGenerator,), {}),
    )
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.openai"):
        module(name)
    module("vllm.entrypoints.common", cli_args="vLLM's arguments")
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.openai.cli_args", None)
    monkeypatch.delitem(sys.modules, "vllm.entrypoints.openai.cli_args")
    module("transformers.core_model_loading", revert_weight_conversion=lambda model, its: its)
    module("waybill.integrations.vllm.clients", HTTPClient=Engine)
    for name in UNDER_TEST:
        monkeypatch.delitem(sys.modules, name, raising=False)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    import waybill.integrations.skyrl as under_test

    under_test.PolicyWorkerBase.deadline = PATIENCE
    Engine.made.clear()
    yield under_test
    for engine in Engine.made:
        engine.leave()
    torch.distributed.destroy_process_group()
    for name in UNDER_TEST:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def worker(skyrl):
    """A policy worker that is about to sync for the first time."""
    worker = skyrl.PolicyWorkerBase(torch.nn.Linear(4, 4))
    asyncio.run(worker.init_weight_sync_state(SERVERS, None))
    yield worker
    if worker._sender is not None:
        worker._sender.close()
    worker._controller.close()


def sync(worker):
    engine = config().generator.inference_engine
    asyncio.run(worker.broadcast_to_inference_engines(SERVERS, engine))


def test_each_sync_makes_all_servers_have_the_weights(worker):
    model = worker.model.model
    for step in (1.0, 2.0):
        model.weight.data.fill_(step)
        sync(worker)
        assert [engine.address for engine in Engine.made] == SERVERS.server_urls
        for engine in Engine.made:
            assert engine.tensors.keys() == {"weight", "bias"}
            assert torch.equal(engine.tensors["weight"], model.weight)
            assert engine.clear_cache
    assert all(engine.calls == 2 * ["pause", "start", "finish", "resume"] for engine in Engine.made)


def test_weights_that_skyrl_has_moved_are_lent_again(worker):
    model = worker.model.model
    sync(worker)
    model.weight.data = torch.full((4, 4), 3.0)
    sync(worker)
    assert len(Engine.made) == 4
    for engine in Engine.made[2:]:
        assert torch.equal(engine.tensors["weight"], torch.full((4, 4), 3.0))


def test_a_worker_that_could_not_join_joins_with_the_next_sync(worker, monkeypatch):
    def fail(engine, init_info):
        raise waybill.FailedPrecondition("the engine is busy")

    with monkeypatch.context() as broken:
        broken.setattr(Engine, "_join", fail)
        with pytest.raises(waybill.FailedPrecondition, match="the engine is busy"):
            sync(worker)
    sync(worker)
    assert torch.equal(Engine.made[-1].tensors["weight"], worker.model.model.weight)


def test_the_language_model_of_a_model_with_vision_has_its_names_there(worker):
    worker._is_multimodal_lm_only = True
    sync(worker)
    assert Engine.made[0].tensors.keys() == {"language_model.weight", "language_model.bias"}


@pytest.mark.parametrize("clears", [False, True])
def test_asynchronous_training_says_what_becomes_of_the_cache(worker, clears):
    worker.cfg.fully_async.enabled = True
    worker.cfg.fully_async.clear_kv_cache_on_weight_sync = clears
    sync(worker)
    assert Engine.made[0].clear_cache == clears


def test_installing_replaces_the_worker_and_the_pause(skyrl):
    cfg = config()
    skyrl.install(cfg)
    backend = cfg.generator.inference_engine.engine_init_kwargs["weight_transfer_config"]
    assert backend == {"backend": "waybill"}
    assert skyrl.fsdp_worker.PolicyWorker == (skyrl.PolicyWorkerBase, {"num_gpus": 1})
    versions = []
    client = types.SimpleNamespace(increment_weight_version=lambda: versions.append(1))
    dispatch = skyrl.worker_dispatch.WorkerDispatch(client)
    asyncio.run(dispatch.save_weights_for_sampler())
    assert dispatch.sent == [(client, None)] and versions == [1]


def test_installing_lets_skyrl_run_servers_of_vllm_0_33(skyrl):
    cfg = config()
    skyrl.install(cfg)
    assert cfg.generator.inference_engine.engine_init_kwargs["enable_scale_out"]
    assert sys.modules["vllm.entrypoints.openai.cli_args"] == "vLLM's arguments"
    from skyrl.backends.skyrl_train.inference_servers import vllm_server_actor
    from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator

    assert vllm_server_actor.VLLMServerActor("here").listen() == ("here", False)
    assert SkyRLGymGenerator(None)._compute_cache_salt() is None
    salts = {SkyRLGymGenerator(salt)._compute_cache_salt() for salt in ("a/b@1", "a/b@2")}
    assert len(salts) == 2 and all(salt.isalnum() for salt in salts)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"strategy": "megatron"}, "strategy=fsdp"),
        ({"colocate_all": True}, "colocate_all=false"),
        ({"rank": 8}, r"lora\.rank=0"),
        ({"data_parallel_size": 2}, "data_parallel_size=1"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(skyrl, changed, named):
    with pytest.raises(waybill.Unimplemented, match=named):
        skyrl.install(config(**changed))


def test_the_entry_point_runs_skyrls_own_with_the_rest_of_its_arguments(skyrl, monkeypatch):
    ran = []

    class Experiment:
        def __init__(self, cfg):
            ran.append(cfg)

        def run(self):
            ran.append(sys.argv[1:])

    cfg = config()
    main_base = types.ModuleType("skyrl.train.entrypoints.main_base")
    main_base.BasePPOExp = Experiment
    main_base.main = lambda: main_base.skyrl_entrypoint.remote(cfg)
    entrypoints = types.ModuleType("skyrl.train.entrypoints")
    entrypoints.main_base = main_base
    train = types.ModuleType("skyrl.train")
    for made in (train, entrypoints, main_base):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    chosen = "trainer.override_entrypoint=waybill.integrations.skyrl"
    monkeypatch.setattr(sys, "argv", ["main_base.py", chosen, "trainer.epochs=3"])
    skyrl.main()
    assert ran == [cfg, ["trainer.epochs=3"]]
    assert cfg.generator.inference_engine.engine_init_kwargs
