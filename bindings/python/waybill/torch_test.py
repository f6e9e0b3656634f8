# SPDX-License-Identifier: Apache-2.0
"""torch's tensors and modules, in one process."""

import subprocess
import sys

import pytest
from one_process_job import PATIENCE, Job

import waybill
from waybill.memory import memory_of
from waybill.placements import chunk, strided_chunk

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("order", ["torch, waybill", "waybill, torch"])
def test_either_may_be_imported_first(order):
    code = f"import {order}; print(waybill.version(), torch.ones(2).sum().item())"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == f"{waybill.version()} 2.0\n"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)
        self.layer = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def job_of(model, job, **options):
    """Joined; the tied head is one tensor with two names, and either can be asked for."""
    trainer, worker = job.trainer(), job.worker(**options)
    trainer.add_module(model, prefix="model.")
    for name, tensor in model.state_dict().items():
        if name != "embedding.weight":
            worker.add("model." + name, shape=tensor.shape, dtype=tensor.dtype)
    job.join()
    return trainer, worker


def test_a_module():
    model = Model()
    with Job() as job:
        trainer, worker = job_of(model, job)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for version in (1, 2):
            model.layer(model.embedding.weight.bfloat16()).sum().backward()
            optimizer.step()
            trainer.publish(version).committed.wait(PATIENCE)
            with worker.snapshot() as snapshot:
                for name, tensor in model.state_dict().items():
                    if name != "embedding.weight":
                        assert torch.equal(snapshot.torch("model." + name), tensor)


@pytest.mark.parametrize("names", [("head", "embed"), ("embed",), ("head",)])
def test_tied_tensors_of_a_worker_are_received_once(names):
    sent, shown = torch.ones(4, 3), torch.zeros(4, 3)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="in-place", ask=())
        for name in names:
            trainer.add(name, sent)
        worker.add("embed", shown)
        worker.add("head", shown)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        assert torch.equal(shown, sent)
        assert worker.progress()["planned_bytes"] == 4 * 3 * 4
        with worker.snapshot() as snapshot:
            assert sorted(snapshot) == ["embed", "head"]
            assert torch.equal(snapshot.torch("head"), snapshot.torch("embed"))


def test_tensors_that_are_tied_only_in_the_worker_are_refused_by_name():
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="in-place", ask=())
        trainer.add("embed", torch.ones(4))
        trainer.add("head", torch.ones(4))
        shown = torch.zeros(4)
        worker.add("embed", shown)
        worker.add("head", shown)
        with pytest.raises(waybill.InvalidArgument, match='"embed".*and "head" in the same memory'):
            job.join()


@pytest.mark.parametrize("what", ["whole", "layer"])
def test_names_of_compiled_modules_are_those_of_the_modules(what):
    model = Model()
    if what == "layer":
        model.layer = torch.compile(model.layer)
    module = torch.compile(model) if what == "whole" else model
    assert any("_orig_mod." in name for name in module.state_dict())
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add_module(module)
        worker.add("layer.weight", shape=(8, 8), dtype=torch.bfloat16)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            weight = dict(model.layer.named_parameters())
            assert torch.equal(snapshot.torch("layer.weight"), next(iter(weight.values())))


def wrapped_as_by_peft(model):
    """Returns a module whose parameters have the names that peft gives them, with `model.layer` adapted."""

    class Adapted(torch.nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(8, 2, bias=False)})
            self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, 8, bias=False)})

        def merge(self):
            self.base_layer.weight.data += (
                self.lora_B["default"].weight @ self.lora_A["default"].weight
            )

    class Saved(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.original_module = module
            self.modules_to_save = torch.nn.ModuleDict({"default": torch.nn.Embedding(16, 8)})

    class Tuner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

    class PeftModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = Tuner()

    model.head = torch.nn.Linear(8, 16, bias=False)
    model.layer = Adapted(model.layer)
    model.embedding = Saved(model.embedding)
    return PeftModel()


def test_names_of_adapted_modules_are_those_of_the_modules():
    model = Model()
    names = {"layer.weight": (8, 8), "layer.bias": (8,), "embedding.weight": (16, 8)}
    module = wrapped_as_by_peft(model)
    assert "base_model.model.layer.base_layer.weight" in module.state_dict()
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add_module(module)
        for name, shape in names.items():
            dtype = torch.float32 if name.startswith("embedding") else torch.bfloat16
            worker.add(name, shape=shape, dtype=dtype)
        job.join()
        with torch.no_grad():
            model.layer.merge()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            assert torch.equal(snapshot.torch("layer.weight"), model.layer.base_layer.weight)
            trained = model.embedding.modules_to_save["default"].weight
            assert torch.equal(snapshot.torch("embedding.weight"), trained)


def test_nothing_is_copied():
    model = Model()
    with waybill.Trainer() as trainer:
        trainer.add_module(model)
        held = {holding.name: holding.memory.address for holding in trainer._holdings}
    assert held == {
        name: tensor.data_ptr()
        for name, tensor in model.state_dict().items()
        if name != "head.weight"
    }


MOVES = [
    ("another_parameter", lambda m: setattr(m.layer, "bias", torch.nn.Parameter(torch.ones(8)))),
    ("other_data", lambda m: setattr(m.layer.bias, "data", torch.ones(8, dtype=torch.bfloat16))),
]


@pytest.mark.parametrize("move", [m[1] for m in MOVES], ids=[m[0] for m in MOVES])
def test_a_parameter_that_has_moved_is_named(move):
    model = Model()
    with Job() as job:
        trainer, _ = job_of(model, job)
        trainer.publish(1).committed.wait(PATIENCE)
        move(model)
        with pytest.raises(waybill.FailedPrecondition, match='"model.layer.bias" has moved'):
            trainer.publish(2)


@pytest.fixture
def slow_publish():
    """Begins a publish that is sent only once the worker is ready: returns the trainer, what it lends and both."""
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(ask=("prepare",))
        lent = torch.nn.Parameter(torch.ones(4))
        trainer.add("w", lent)
        worker.add("w", shape=(4,), dtype=lent.dtype)
        job.join()

        def publish(version):
            publish = trainer.publish_async(version, deadline=PATIENCE)
            prepare = next(e for e in worker.events(PATIENCE) if isinstance(e, waybill.Prepare))
            return publish, prepare

        yield trainer, lent, publish


CHANGED = 'version 1: "w" changed before it was sent'


def test_a_tensor_that_changes_before_it_is_sent_fails_its_version_by_name(slow_publish):
    _, lent, begin = slow_publish
    publish, prepare = begin(1)
    with torch.no_grad():
        lent.add_(1)
    prepare.ready()
    with pytest.raises(waybill.FailedPrecondition, match=CHANGED):
        publish.sent.wait(PATIENCE)
    with pytest.raises(waybill.FailedPrecondition, match=CHANGED):
        publish.committed.wait(PATIENCE)
    publish, prepare = begin(2)  # It was raised.
    prepare.ready()
    publish.committed.wait(PATIENCE)


def test_a_change_that_nobody_waited_for_is_raised_by_the_next_publish(slow_publish, caplog):
    trainer, lent, begin = slow_publish
    publish, prepare = begin(1)
    with torch.no_grad():
        lent.add_(1)
    prepare.ready()
    assert trainer._pump.until(lambda: publish._sent.done, PATIENCE)
    assert any(CHANGED in record.getMessage() for record in caplog.records)
    with pytest.raises(waybill.FailedPrecondition, match="publish version 2: " + CHANGED):
        trainer.publish(2)


def test_a_tensor_may_change_once_it_is_sent(slow_publish):
    _, lent, begin = slow_publish
    for version in (1, 2):
        publish, prepare = begin(version)
        prepare.ready()
        publish.sent.wait(PATIENCE)
        with torch.no_grad():
            lent.add_(1)
        publish.committed.wait(PATIENCE)


def test_tensors_whose_changes_torch_does_not_count_are_published():
    with Job() as job, torch.inference_mode():
        trainer, worker = job.trainer(), job.worker(ask=())
        trainer.add("w", torch.ones(4))
        worker.add("w", shape=(4,), dtype=torch.float32)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)


def test_lent_memory_outlives_other_data_of_its_tensor():
    parameter = torch.nn.Parameter(torch.ones(4))
    memory = memory_of(parameter)
    parameter.data = torch.zeros(4)
    assert memory.owner.data_ptr() == memory.address != parameter.data_ptr()
    assert memory.owner.sum() == 4


def job_to_a_parameter(job, **options):
    """Joined, with the parameter that the worker writes to."""
    shown = torch.nn.Parameter(torch.zeros(8, 4), requires_grad=False)
    trainer, worker = job.trainer(), job.worker(**options)
    trainer.add("w", torch.ones(8, 4))
    worker.add("w", shown)
    job.join()
    return trainer, worker, shown


def replace(parameter):
    """Does what vLLM's replace_parameter() does when it repacks weights."""
    parameter.data = parameter.data.clone()


@pytest.mark.parametrize("mode", ["shadow-copy", "in-place"])
def test_a_destination_that_has_moved_is_refused_by_name(mode):
    """Nobody takes the worker's events here."""
    with Job() as job:
        trainer, worker, shown = job_to_a_parameter(job, mode=mode, ask=())
        trainer.publish(1).committed.wait(PATIENCE)
        assert shown.sum() == 32
        replace(shown)
        with pytest.raises(
            waybill.WaybillError, match='worker 0.*"w" has moved since it was added'
        ):
            trainer.publish(2, deadline=PATIENCE).committed.wait(PATIENCE)
        assert (worker.state.shown_version, worker.state.dirty) == (1, False)


@pytest.mark.parametrize("when", [waybill.Prepare, waybill.Arrived])
def test_an_answer_for_a_destination_that_has_moved_is_a_refusal(when):
    with Job() as job:
        ask = ("prepare", "arrived")
        trainer, worker, shown = job_to_a_parameter(job, mode="in-place", ask=ask)
        publish = trainer.publish_async(1, deadline=PATIENCE)
        for event in worker.events(PATIENCE):
            if isinstance(event, waybill.Abort):
                break
            answer = event.ready if isinstance(event, waybill.Prepare) else event.accept
            if not isinstance(event, when):
                answer()
                continue
            replace(shown)
            with pytest.raises(waybill.FailedPrecondition, match='version 1: "w" has moved'):
                answer()
        with pytest.raises(waybill.WaybillError, match='"w" has moved'):
            publish.committed.wait(PATIENCE)
        assert worker.state.shown_version == 0


def test_a_stream_is_waited_for():
    class Stream:
        waited = 0

        def synchronize(self):
            self.waited += 1

    with Job() as job:
        trainer, _ = job_of(Model(), job)
        stream = Stream()
        trainer.publish(1, stream=stream).committed.wait(PATIENCE)
        assert stream.waited == 1


def test_tensors_without_memory():
    with waybill.Trainer() as trainer:
        with pytest.raises(waybill.InvalidArgument, match="device 'meta'"):
            trainer.add("w", torch.ones(3, device="meta"))
        with pytest.raises(waybill.InvalidArgument, match="dtype 'complex64'"):
            trainer.add("w", torch.ones(3, dtype=torch.complex64))


def test_a_stretched_destination_names_its_stride():
    with waybill.Worker(mode="in-place") as worker:
        worker.add("transposed", torch.ones(4, 3).t())
        with pytest.raises(waybill.InvalidArgument, match="stride 2 of dimension 1"):
            worker.add("w", torch.ones(4, 6)[:, ::2])


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int16", "bool"]
)
def test_by_dlpack_it_is_the_same_memory(dtype):
    tensor = torch.ones(4, 6).to(getattr(torch, dtype))[1:]

    class Foreign:
        def __dlpack__(self, **options):
            return tensor.__dlpack__(**options)

    ours, theirs = memory_of(tensor), memory_of(Foreign())
    for field in ("address", "shape", "strides", "dtype", "kind"):
        assert getattr(ours, field) == getattr(theirs, field)


def test_fp8_blocks_with_their_scales():
    """What a trainer holds in BF16 arrives as E4M3 and a scale for each 128 x 128 block."""
    weights = torch.randn(256, 384, generator=torch.Generator().manual_seed(1)).bfloat16()
    codes = torch.zeros(256, 384, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(2, 3)
    scheme = {"quantisation": "fp8-block", "dtype": "BF16"}
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("w", weights)
        codes_part = waybill.Part("w", (256, 384), content="quantised", **scheme)
        worker.add("w", codes, parts=[codes_part])
        scales_part = waybill.Part("w", (256, 384), [(0, 2), (0, 3)], content="scales", **scheme)
        worker.add("w_scale_inv", scales, parts=[scales_part])
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    each = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    # Between 256 and 448 codes are 32 apart.
    assert ((codes.float() * each - weights.float()).abs() <= 16.01 * each).all()
    largest = weights.float().reshape(2, 128, 3, 128).abs().amax(dim=(1, 3))
    assert torch.allclose(scales, largest / 448)


@pytest.mark.parametrize("length", [0, 1, 3, 8, 33])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_pieces_are_those_of_torch(length, count):
    """Against torch's own cut of a tensor that holds its indices."""
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    indices = torch.arange(length)
    for split_factor in (None, 1, 2, 3):
        placement = (
            Shard(0) if split_factor is None else _StridedShard(0, split_factor=split_factor)
        )
        theirs, _ = placement._split_tensor(indices, count, with_padding=False)
        for index in range(count):
            ours = (
                chunk([(0, length)], count, index)
                if split_factor is None
                else strided_chunk([(0, length)], count, index, split_factor)
            )
            assert [i for begin, end in ours for i in range(begin, end)] == theirs[index].tolist()


def test_a_dtensor_as_destination():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weights = torch.arange(15.0).reshape(5, 3)
    shown = distribute_tensor(torch.zeros(5, 3), init_device_mesh("cpu", (1,)), [Shard(1)])
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="in-place", ask=())
        trainer.add("w", weights)
        worker.add("w", shown)
        summed = shown.redistribute(placements=[Partial()])
        with pytest.raises(waybill.InvalidArgument, match='"sum": placement Partial'):
            trainer.add("sum", summed)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    assert torch.equal(shown.to_local(), weights)
    dist.destroy_process_group()


CASTS = [
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
]


@pytest.mark.parametrize(("held", "wanted"), CASTS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_cast_on_the_way_is_that_of_torch(held, wanted, turned):
    """Every F16 and BF16, and every upper half of a float with lower halves that round up, down and to even."""
    if held == "float32":
        lower = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001])
        bits = (torch.arange(-0x8000, 0x8000)[:, None] * 0x10000 + lower).int()
    else:
        bits = torch.arange(-0x8000, 0x8000).short().reshape(-1, 8)
    values = bits.view(getattr(torch, held)).contiguous()
    shape = values.shape[::-1] if turned else values.shape
    received = torch.zeros(shape, dtype=getattr(torch, wanted))
    strides = received.T.stride() if turned else received.stride()
    part = waybill.Part("w", values.shape, at=(0, 0), strides=strides)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("w", values)
        worker.add("p", received, parts=[part])
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        worker.await_version(1, PATIENCE)
    expected = values.to(received.dtype)
    found = received.T if turned else received
    numbers = ~expected.isnan()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[numbers], expected[numbers])
    assert torch.equal(found[numbers].signbit(), expected[numbers].signbit())
