# SPDX-License-Identifier: Apache-2.0
"""Adapters without peft and without an engine: what is lent, what a folder holds, and when an engine is told to load it."""

import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from one_process_job import PATIENCE, Job

import waybill
from waybill.integrations import adapters
from waybill.integrations.adapters import AdapterReceiver, folder_of, lend_adapter
from waybill.integrations.clients import Client
from waybill.integrations.sender import Sender

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

SAVED = "base_model.model.q_proj.lora_{}.weight"


class Layer(torch.nn.Module):
    """A layer with the names that peft gives: those of two adapters, beside the layer that they adapt."""

    def __init__(self):
        super().__init__()
        self.base_layer = torch.nn.Linear(6, 4)
        for part, shape in (("A", (2, 6)), ("B", (4, 2))):
            weights = {name: torch.rand(shape, dtype=torch.bfloat16) for name in ("first", "other")}
            layers = {name: torch.nn.Linear(1, 1, bias=False) for name in weights}
            for name, layer in layers.items():
                layer.weight = torch.nn.Parameter(weights[name])
            setattr(self, f"lora_{part}", torch.nn.ModuleDict(layers))


class Adapted(torch.nn.Module):
    """A model of peft."""

    def __init__(self):
        super().__init__()
        self.base_model = torch.nn.Module()
        self.base_model.model = torch.nn.Module()
        self.base_model.model.q_proj = Layer()
        said = {"r": 2, "lora_alpha": 4, "target_modules": {"q_proj"}}
        config = SimpleNamespace(peft_type="PeftType.LORA", to_dict=lambda: said)
        self.peft_config = {"first": config, "other": config}
        self.active_adapter = "first"

    def tensors(self):
        layer = self.base_model.model.q_proj
        return {
            SAVED.format("A"): layer.lora_A["first"].weight,
            SAVED.format("B"): layer.lora_B["first"].weight,
        }


class Engine(Client):
    """An engine on one host, in this process, which notes what it has to load."""

    def __init__(self):
        super().__init__()
        self.receiver, self.installed = None, []

    def _join(self, init_info):
        told = {"job": "", "token": None, "fabric": "auto", "deadline": PATIENCE, **init_info}
        self.told = told
        self.receiver = AdapterReceiver(told, f"test-{told['engine']}-0", 0, 1)

    def _install_adapter(self, name, version, folder):
        self.installed.append((name, version))
        self.loaded = load_file(f"{folder}/adapter_model.safetensors")
        self.config = json.loads(Path(folder, "adapter_config.json").read_text())

    def _start(self):
        raise AssertionError("an adapter stops no engine")

    _pause_engine = _update = _finish = _start


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def job():
    with Job() as job:
        yield job


def sender_of(job, model, engine):
    trainer = waybill.Trainer(job.controller.address, rank=0, world=1)
    config = lend_adapter(trainer, model)
    told = {"controller": job.controller.address, "token": None, "adapter": config}
    sender = Sender(trainer, [engine], told, PATIENCE, "policy")
    job.callback(sender.close)
    return sender


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_an_engine_loads_what_peft_would_have_saved_and_is_not_stopped(job, memory):
    model, engine = Adapted(), Engine()
    sender = sender_of(job, model, engine)
    for version in (1, 2):
        with torch.no_grad():
            model.base_model.model.q_proj.lora_B["first"].weight.fill_(version)
        assert sender.send() == version
        assert engine.installed[-1] == ("policy", version)
        assert_equal(engine.loaded, model.tensors())
        assert engine.config == {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    engine.receiver.close()


def test_the_version_before_is_kept_and_older_ones_are_removed(job, memory):
    engine = Engine()
    sender = sender_of(job, Adapted(), engine)
    for _ in range(3):
        sender.send()
    folder = Path(folder_of(engine.told["engine"], 1)).parent
    assert sorted(its.name for its in folder.iterdir()) == ["2", "3"]
    engine.receiver.close()
    assert not folder.exists()


def test_a_version_that_a_host_cannot_write_is_installed_nowhere(job, memory, monkeypatch):
    engine = Engine()
    sender = sender_of(job, Adapted(), engine)

    def fail(*_args, **_options):
        raise OSError("no space left")

    monkeypatch.setattr(adapters, "save_snapshot", fail)
    with pytest.raises(waybill.WaybillError, match="no space left"):
        sender.send()
    assert engine.installed == []
    monkeypatch.undo()
    monkeypatch.setattr(adapters, "MEMORY", memory)
    sender.send()
    assert engine.installed == [("policy", 2)]
    engine.receiver.close()


def test_what_a_dead_engine_left_is_removed_and_what_a_live_one_has_is_not(job, memory):
    dead, live = memory / "waybill-adapters-dead", memory / "waybill-adapters-live"
    for folder in (dead, live):
        (folder / "1").mkdir(parents=True)
    lock = os.open(live, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    engine = Engine()
    sender_of(job, Adapted(), engine)
    assert not dead.exists() and (live / "1").exists()
    os.close(lock)
    engine.receiver.close()


def test_what_another_users_link_names_is_not_touched(job, memory, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (memory / "waybill-adapters-link").symlink_to(theirs)
    monkeypatch.setattr(adapters.os, "geteuid", lambda: os.getuid() + 1)
    engine = Engine()
    sender_of(job, Adapted(), engine)
    assert theirs.exists()
    monkeypatch.undo()
    engine.receiver.close()


def test_without_room_in_memory_the_folder_is_elsewhere_under_the_same_name(
    job, memory, monkeypatch
):
    real = adapters.shutil.disk_usage
    monkeypatch.setattr(adapters.shutil, "disk_usage", lambda path: real(path)._replace(free=10))
    model, engine = Adapted(), Engine()
    sender = sender_of(job, model, engine)
    sender.send()
    (link,) = memory.iterdir()
    assert link.is_symlink()
    assert_equal(engine.loaded, model.tensors())
    elsewhere = link.resolve()
    engine.receiver.close()
    assert not elsewhere.exists() and not link.is_symlink()


def test_an_adapter_that_trains_whole_layers_is_refused():
    model = Adapted()
    model.peft_config["first"].modules_to_save = ["lm_head"]
    with waybill.Trainer(rank=0, world=1) as trainer:
        with pytest.raises(waybill.InvalidArgument, match="modules_to_save"):
            lend_adapter(trainer, model)


def test_an_adapter_may_have_the_name_of_a_module():
    model = Adapted()
    layer = model.base_model.model.q_proj
    for part in (layer.lora_A, layer.lora_B):
        part["model"] = part.pop("first")
    model.peft_config["model"] = model.peft_config.pop("first")
    model.active_adapter = "model"
    with waybill.Trainer(rank=0, world=1) as trainer:
        lend_adapter(trainer, model)
        assert set(trainer._holdings.names()) == {SAVED.format("A"), SAVED.format("B")}


def test_a_model_without_an_active_adapter_is_refused():
    with waybill.Trainer(rank=0, world=1) as trainer:
        for model in (torch.nn.Linear(2, 2), Adapted()):
            model.active_adapter = "none"
            with pytest.raises(waybill.InvalidArgument, match=f"{type(model).__name__} has no"):
                lend_adapter(trainer, model)
