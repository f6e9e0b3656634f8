# SPDX-License-Identifier: Apache-2.0
"""SGLang's integration without SGLang: its HTTP interface is played by a server that calls the custom weight loader."""

import pickle
import pickletools

import pytest
from one_process_job import PATIENCE, Job
from sglang_server import Server, record_live_models

import waybill
from waybill.integrations.sglang import HTTPClient, WeightSender
from waybill.integrations.sglang.commands import named_tensors_of, serialise, unpack

torch = pytest.importorskip("torch")


class Model(torch.nn.Module):
    """A model whose loader stacks two tensors of the checkpoint."""

    def __init__(self):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.zeros(8, 4), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.finished = 0

    def load_weights(self, items):
        for name, tensor in items:
            if name == "norm":
                self.norm.data.copy_(tensor)
            else:
                self.gate_up.data[4 * (name == "up") :][:4].copy_(tensor)

    def post_load_weights(self):
        self.finished += 1


class Trained(torch.nn.Module):
    """The same weights by the names of the checkpoint."""

    def __init__(self, names=("gate", "up", "norm")):
        super().__init__()
        for name in names:
            shape = (4,) if name == "norm" else (4, 4)
            self.register_parameter(name, torch.nn.Parameter(torch.rand(shape)))


@pytest.fixture
def server(monkeypatch):
    record_live_models(monkeypatch)
    with Server(Model()) as server:
        yield server
        server.shutdown()


def sender_of(job, model, client):
    sender = WeightSender(job.controller.address, model, client, rank=0, world=1, deadline=PATIENCE)
    job.callback(sender.close)
    return sender


def assert_loaded(server, trained):
    wanted = Model()
    wanted.load_weights(trained.named_parameters())
    assert torch.equal(server.model.gate_up, wanted.gate_up)
    assert torch.equal(server.model.norm, wanted.norm)


def test_a_command_is_pickled_with_no_other_global_than_a_tensor():
    command = {"do": "update", "version": 7}
    opcodes = list(pickletools.genops(serialise(command)))
    strings = [argument for opcode, argument, _ in opcodes if "UNICODE" in opcode.name]
    assert sum(opcode.name in ("STACK_GLOBAL", "GLOBAL") for opcode, _, _ in opcodes) == 1
    assert {"torch", "Tensor"} <= set(strings)
    assert unpack(pickle.loads(serialise(command))) == command
    assert unpack(named_tensors_of(command)) == command


def test_what_is_sent_equals_a_fresh_load(server):
    trained = Trained()
    with Job() as job:
        sender = sender_of(job, trained, server.url)
        assert server.calls == [
            "end_weight_update",
            "begin_weight_update",
            "update_weights_from_tensor",
            "end_weight_update",
        ]
        for version in (1, 2):
            with torch.no_grad():
                trained.gate.fill_(version)
            server.calls.clear()
            assert sender.send_weights() == version
            assert server.calls == [
                "pause_generation",
                "begin_weight_update",
                "update_weights_from_tensor",
                "end_weight_update",
                "update_weight_version",
                "continue_generation",
            ]
            assert server.version == str(version)
            assert_loaded(server, trained)
            assert server.model.finished == version


class Fused(torch.nn.Module):
    """A trainer's model whose parameters have other names and shapes than the checkpoint."""

    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Parameter(torch.rand(8, 4))
        self.scale = torch.nn.Parameter(torch.rand(4))

    def export(self):
        gate, up = self.fc1.chunk(2)
        return {"gate": gate, "up": up, "norm": self.scale}


def test_a_trainers_own_export_names_what_is_sent(server):
    fused = Fused()
    with Job() as job:
        sender = WeightSender(
            job.controller.address,
            fused,
            server.url,
            export=Fused.export,
            rank=0,
            world=1,
            deadline=PATIENCE,
        )
        job.callback(sender.close)
        sender.send_weights()
        assert torch.equal(server.model.gate_up, fused.fc1)
        assert torch.equal(server.model.norm, fused.scale)


def test_an_error_of_the_server_names_the_call_and_what_it_said(server):
    with Job() as job:
        sender = sender_of(job, Trained(), server.url)
        server.failing = {"begin_weight_update": "a weight-update session is already open"}
        with pytest.raises(waybill.FailedPrecondition, match="begin_weight_update.*already open"):
            sender.send_weights()
        assert server.calls[-1] == "continue_generation"


def test_an_update_that_a_trainer_left_open_is_ended_by_the_next_one(server):
    HTTPClient(server.url).start_weight_update()  # By a trainer that dies then.
    assert server.session
    trained = Trained()
    with Job() as job:
        sender = sender_of(job, trained, server.url)
        sender.send_weights()
        assert_loaded(server, trained)
    assert server.calls[-1] == "continue_generation"


def test_an_engine_that_cannot_join_says_why_with_the_first_update(server):
    before = server.model.norm.clone()
    with Job() as job:
        sender = sender_of(job, Trained(names=("gate", "up")), server.url)
        for _ in range(2):
            with pytest.raises(waybill.WaybillError, match='"norm": 4 of 4 elements'):
                sender.send_weights()
        assert torch.equal(server.model.norm, before)
        assert server.version == "default"  # The label of what it serves.
        sender.close()
        right = Trained()
        sender_of(job, right, server.url).send_weights()
        assert_loaded(server, right)


@pytest.mark.parametrize(("option", "value"), [("pp_size", 2), ("enable_eplb", True)])
def test_an_engine_with_stages_or_with_experts_that_move_is_refused_by_name(server, option, value):
    server.options[option] = value
    with Job() as job:
        with pytest.raises(waybill.Unimplemented, match=f"{server.url}: {option} is {value}"):
            sender_of(job, Trained(), server.url)
    assert server.calls == []


def test_the_gpu_is_waited_for_after_the_pause_and_before_the_copy(server, monkeypatch):
    seen = []

    def synchronize():
        seen.append((server.calls[-1], server.model.norm.clone()))

    with Job() as job:
        sender = sender_of(job, Trained(), server.url)
        before = server.model.norm.clone()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        server.calls.clear()
        sender.send_weights()
    ((call, norm),) = seen
    assert call == "update_weights_from_tensor" and server.calls[0] == "pause_generation"
    assert torch.equal(norm, before) and not torch.equal(server.model.norm, before)


def test_without_pausing_the_caller_pauses(server):
    with Job() as job:
        sender = sender_of(job, Trained(), HTTPClient(server.url, pause=None))
        server.calls.clear()
        sender.send_weights()
        assert server.calls == [
            "begin_weight_update",
            "update_weights_from_tensor",
            "end_weight_update",
            "update_weight_version",
        ]
