# SPDX-License-Identifier: Apache-2.0
"""A trainer's own export: its parameters are lent as the tensors that the export makes of them, without running it for real."""

from contextlib import contextmanager

import pytest
from numbered_elements import UNTOUCHED, numbered, replay
from one_process_job import PATIENCE, Job

import waybill
from waybill.recording import Recording
from waybill.torch import record_export

torch = pytest.importorskip("torch")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

dist = torch.distributed

HIDDEN, HEAD, GROUPS, HEADS_OF_A_GROUP, VOCABULARY, PADDED, EXPERTS = 6, 2, 4, 3, 10, 12, 4
# The tensors of the checkpoint, by their names in Hugging Face's models.
CHECKPOINT = {
    "embed.weight": (VOCABULARY, HIDDEN),
    "q_proj.weight": (GROUPS * HEADS_OF_A_GROUP * HEAD, HIDDEN),
    "k_proj.weight": (GROUPS * HEAD, HIDDEN),
    "v_proj.weight": (GROUPS * HEAD, HIDDEN),
    "o_proj.weight": (HIDDEN, GROUPS * HEADS_OF_A_GROUP * HEAD),
    "gate_proj.weight": (8, HIDDEN),
    "up_proj.weight": (8, HIDDEN),
    "norm.weight": (HIDDEN,),
    "later.weight": (4, HIDDEN),
    **{f"experts.{expert}.down_proj.weight": (HIDDEN, 4) for expert in range(EXPERTS)},
}


@contextmanager
def ranks(rank, world):
    """Lets this process be one rank of a group whose other ranks are not there."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def merged_qkv(tensors):
    """Megatron's order: for each group its queries, its key, its value."""
    q, k, v = (tensors[f"{name}_proj.weight"] for name in "qkv")
    groups = [part.view(GROUPS, -1, HIDDEN) for part in (q, k, v)]
    return torch.cat(groups, dim=1).reshape(-1, HIDDEN)


class Trained(torch.nn.Module):
    """One rank's parameters as Megatron has them: fused, padded, and cut over the ranks of a group."""

    def __init__(self, tensors, rank=0, world=1):
        super().__init__()
        self.rank, self.world = rank, world
        gate, up = tensors["gate_proj.weight"], tensors["up_proj.weight"]
        padding = torch.full((PADDED - VOCABULARY, HIDDEN), UNTOUCHED)
        self._add("embed", torch.cat([tensors["embed.weight"], padding]).chunk(world)[rank])
        self._add("qkv", merged_qkv(tensors).chunk(world)[rank])
        self._add("proj", tensors["o_proj.weight"].chunk(world, dim=1)[rank])
        self._add("fc1", torch.cat([gate.chunk(world)[rank], up.chunk(world)[rank]]))
        self._add("norm", tensors["norm.weight"])
        own = EXPERTS // world
        for expert in range(own):
            weight = tensors[f"experts.{rank * own + expert}.down_proj.weight"]
            self._add(f"expert{expert}", weight)
        if rank == world - 1:  # The last stage of a pipeline has it.
            self._add("later", tensors["later.weight"])

    def _add(self, name, tensor):
        self.register_parameter(name, torch.nn.Parameter(tensor.clone()))

    def _gathered(self, tensor):
        if self.world == 1:
            return [tensor]
        pieces = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(pieces, tensor)
        return pieces

    def export(self):
        """Does what mbridge's export does: it gathers, merges, and splits into the tensors of the checkpoint."""
        yield "embed.weight", torch.cat(self._gathered(self.embed))[:VOCABULARY]
        yield from self._export_qkv()
        yield "o_proj.weight", torch.cat(self._gathered(self.proj), dim=1)
        halves = [piece.chunk(2) for piece in self._gathered(self.fc1)]
        yield "gate_proj.weight", torch.cat([gate for gate, _ in halves])
        yield "up_proj.weight", torch.cat([up for _, up in halves])
        yield "norm.weight", self.norm
        for expert in range(EXPERTS // self.world):
            pieces = self._gathered(getattr(self, f"expert{expert}"))
            for rank, piece in enumerate(pieces):
                number = rank * (EXPERTS // self.world) + expert
                yield f"experts.{number}.down_proj.weight", piece
        last = self.world - 1
        later = self.later if self.rank == last else torch.empty(CHECKPOINT["later.weight"])
        if self.world > 1:
            dist.broadcast(later, last)
        yield "later.weight", later

    def _export_qkv(self):
        if self.world > 1:
            room = torch.empty(
                self.world * self.qkv.shape[0], HIDDEN, dtype=self.qkv.dtype, device=self.qkv.device
            )
            dist.all_gather_into_tensor(room, self.qkv)
        else:
            room = self.qkv
        qkv = room.view(GROUPS, -1, HIDDEN)
        of_q = HEADS_OF_A_GROUP * HEAD
        yield "q_proj.weight", qkv[:, :of_q].reshape(-1, HIDDEN)
        yield "k_proj.weight", qkv[:, of_q : of_q + HEAD].reshape(-1, HIDDEN)
        yield "v_proj.weight", qkv[:, of_q + HEAD :].reshape(-1, HIDDEN)


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (2, 4), (3, 4)])
def test_each_element_is_lent_as_what_it_was_loaded_from(rank, world):
    tensors = numbered(CHECKPOINT)
    trained = Trained(tensors, rank, world)
    with ranks(rank, world):
        recording = record_export(trained, Trained.export)
    assert recording.tensors().keys() == CHECKPOINT.keys()
    filled = replay(recording, tensors)
    for name, parameter in trained.named_parameters():
        assert torch.equal(filled[name], parameter), name


def test_parameters_in_one_flat_buffer_are_recorded_apart():
    tensors = numbered(CHECKPOINT)
    trained = Trained(tensors)
    flat = torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])
    begin = 0
    for parameter in trained.parameters():
        end = begin + parameter.numel()
        parameter.data = flat[begin:end].view(parameter.shape)
        begin = end
    recording = record_export(trained, Trained.export)
    assert recording == record_export(Trained(tensors), Trained.export)


def test_a_recording_of_an_export_is_kept_as_json():
    recording = record_export(Trained(numbered(CHECKPOINT)), Trained.export)
    assert Recording.from_json(recording.to_json()) == recording


def test_the_trained_module_stays_as_it_is():
    trained = Trained(numbered(CHECKPOINT))
    before = {name: (p.data_ptr(), p.clone()) for name, p in trained.named_parameters()}
    record_export(trained, Trained.export)
    for name, parameter in trained.named_parameters():
        address, values = before[name]
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, values)


def test_what_an_export_makes_of_other_buffers_is_sent_too():
    module = torch.nn.Module()
    module.register_buffer("bias", torch.arange(3.0))
    recording = record_export(module, lambda twin: {"expert_bias": twin.bias})
    assert [part.tensor for part in recording.parts()["bias"]] == ["expert_bias"]


def test_stages_in_a_list_are_recorded_as_one_module():
    stages = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    recording = record_export(
        stages, lambda twin: ((f"layers.{i}", stage.weight) for i, stage in enumerate(twin))
    )
    parts = {name: [part.tensor for part in its] for name, its in recording.parts().items()}
    assert parts == {"0.weight": ["layers.0"], "1.weight": ["layers.1"]}


def test_gradients_beside_a_parameter_are_not_copied():
    trained = Trained(numbered(CHECKPOINT))
    for parameter in trained.parameters():
        parameter.main_grad = torch.ones(parameter.shape)
    seen = []

    def export(twin):
        seen.extend(parameter.main_grad.device.type for parameter in twin.parameters())
        return twin.export()

    record_export(trained, export)
    assert set(seen) == {"meta"}


@pytest.mark.parametrize(
    ("export", "error", "said"),
    [
        (lambda m: {"w": m.w * 2}, waybill.Unimplemented, '"w": aten.mul computes with "w"'),
        (lambda m: {"w": m.w.bfloat16()}, waybill.Unimplemented, "cast from torch.float32"),
        (lambda m: {"w": m.w, "z": torch.zeros(2)}, waybill.Unimplemented, '"z": .*set to 0.0'),
        (lambda m: {"w": m.w[: int(m.w.sum())]}, waybill.Unimplemented, "reads the value of"),
        (lambda m: [("w", m.w), ("w", m.w[1:])], waybill.InvalidArgument, '"w" twice'),
        (lambda m: {"w": m.gone}, waybill.FailedPrecondition, "AttributeError.*gone"),
        (lambda m: {}, waybill.FailedPrecondition, '"w": no element of it is exported'),
    ],
    ids=["computed", "cast", "constant", "value", "twice", "failing", "forgotten"],
)
def test_what_is_no_copy_is_refused_by_name(export, error, said):
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.rand(4, 2))
    with pytest.raises(error, match=said):
        record_export(module, export)


def test_a_skipped_tensor_may_be_computed():
    module = torch.nn.Module()
    module.w, module.b = (torch.nn.Parameter(torch.rand(2)) for _ in range(2))
    recording = record_export(module, lambda m: {"w": m.w, "double": m.b * 2}, skip=["doub*"])
    assert recording.targets().keys() == {"w"}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_shards_go_to_a_worker_under_the_names_of_the_checkpoint(world):
    """No rank gathers: the group of the trainers has one rank that is there."""
    shown = {name: torch.zeros(shape) for name, shape in CHECKPOINT.items()}
    with Job() as job:
        trained = []
        for rank in range(world):
            trainer = job.trainer(rank=rank, world=world)
            trained.append((trainer, Trained(numbered(CHECKPOINT), rank, world)))
            with ranks(rank, world):
                trainer.add_exported(trained[-1][1], Trained.export)
        worker = job.worker(mode="shadow-copy")
        for name, tensor in shown.items():
            worker.add(name, tensor)
        job.join()
        for version in (1, 2):
            new = {name: tensor * version for name, tensor in numbered(CHECKPOINT).items()}
            publishes = []
            for rank, (trainer, module) in enumerate(trained):
                wanted = Trained(new, rank, world)
                with torch.no_grad():
                    for name, parameter in module.named_parameters():
                        parameter.copy_(wanted.get_parameter(name))
                publishes.append(trainer.publish_async(version, deadline=PATIENCE))
            assert worker.receive(deadline=PATIENCE) == version
            for publish in publishes:
                publish.committed.wait(PATIENCE)
            for name, tensor in new.items():
                assert torch.equal(shown[name], tensor), name


def test_a_parameter_that_moved_is_refused_by_name():
    trained = Trained(numbered(CHECKPOINT))
    with Job() as job:
        trainer = job.trainer()
        trainer.add_exported(trained, Trained.export)
        worker = job.worker(mode="shadow-copy")
        worker.add("norm.weight", torch.zeros(HIDDEN))
        job.join()
        trained.qkv.data = trained.qkv.data.clone()
        with pytest.raises(waybill.FailedPrecondition, match='"qkv" has moved'):
            trainer.publish(1)


def test_one_parameter_may_be_exported_under_two_names():
    module = torch.nn.Module()
    module.embed = torch.nn.Parameter(torch.rand(4, 2))
    shown = {name: torch.zeros(4, 2) for name in ("embed", "head")}
    with Job() as job:
        trainer = job.trainer()
        trainer.add_exported(module, lambda twin: {"embed": twin.embed, "head": twin.embed})
        worker = job.worker(mode="shadow-copy")
        for name, tensor in shown.items():
            worker.add(name, tensor)
        job.join()
        publish = trainer.publish_async(1, deadline=PATIENCE)
        worker.receive(deadline=PATIENCE)
        publish.committed.wait(PATIENCE)
    assert all(torch.equal(tensor, module.embed) for tensor in shown.values())
