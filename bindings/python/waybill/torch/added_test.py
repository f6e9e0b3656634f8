# SPDX-License-Identifier: Apache-2.0
"""A worker that is given a model and the model's own loader, from the trainer's tensors to the worker's parameters."""

import pytest
from one_process_job import PATIENCE, Job, together

import waybill
from waybill.recording import Recording

torch = pytest.importorskip("torch")

HIDDEN, HEAD, EXPERTS, RANKS, RANK = 8, 4, 3, 2, 1
BF16 = torch.bfloat16


def checkpoint(version):
    """The trainer's tensors, by the names of a checkpoint."""
    shapes = {"embed.weight": (10, HIDDEN), "norm.weight": (HIDDEN,), "inv_freq": (2,)}
    for name, rows in (("q", 4 * HEAD), ("k", 2 * HEAD), ("v", 2 * HEAD)):
        shapes[f"layers.0.attn.{name}_proj.weight"] = (rows, HIDDEN)
    for expert in range(EXPERTS):
        for name in ("gate", "up"):
            shapes[f"layers.0.experts.{expert}.{name}_proj.weight"] = (12, HIDDEN)
        shapes[f"layers.0.experts.{expert}.down_proj.weight"] = (HIDDEN, 12)
    shapes["layers.0.bias"] = (EXPERTS,)
    generator = torch.Generator().manual_seed(version)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float32).to(
            torch.float32 if name in ("norm.weight", "layers.0.bias") else BF16
        )
        for name, shape in shapes.items()
    }


class Engine(torch.nn.Module):
    """One rank's model as engines have it: fused, stacked, transposed and padded parameters."""

    def __init__(self):
        super().__init__()

        def parameter(*shape):
            return torch.nn.Parameter(torch.zeros(shape, dtype=BF16), requires_grad=False)

        self.embed = parameter(6, HIDDEN)  # Rows 6 to 10 of 10, and padding.
        self.norm = parameter(HIDDEN)
        self.qkv = parameter(2 * HEAD + 2 * HEAD, HIDDEN)
        self.w13 = parameter(EXPERTS, 12, HIDDEN)
        self.w2 = parameter(EXPERTS, 6, HIDDEN)  # Transposed.
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("cos", torch.ones(4))

    def load_weights(self, items):
        for name, tensor in items:
            leaf = name.split(".")[-2] if "." in name else name
            if name == "embed.weight":
                self.embed.data[:4].copy_(tensor[6:])
                self.embed.data[4:].zero_()
            elif name == "norm.weight":
                self.norm.data.copy_(tensor)
            elif name.endswith("bias"):
                self.bias.copy_(tensor)
            elif "experts" in name:
                self.load_expert(int(name.split(".")[3]), leaf, tensor)
            elif leaf in ("q_proj", "k_proj", "v_proj"):
                size = tensor.shape[0] // RANKS
                at = {"q_proj": 0, "k_proj": 2 * HEAD, "v_proj": 3 * HEAD}[leaf]
                self.qkv.data.narrow(0, at, size).copy_(tensor.narrow(0, RANK * size, size))

    def load_expert(self, expert, leaf, tensor):
        if leaf == "down_proj":
            self.w2.data[expert].copy_(tensor.narrow(1, 6 * RANK, 6).t())
        else:
            half = self.w13.data[expert].narrow(0, 6 * (leaf == "up_proj"), 6)
            half.copy_(tensor.narrow(0, 6 * RANK, 6))


def fresh(version):
    """The parameters and buffers of an engine that has just loaded a version."""
    engine = Engine()
    engine.load_weights(iter(checkpoint(version).items()))
    return engine.state_dict()


def assert_loaded(engine, version):
    expected = fresh(version)
    for name, tensor in engine.state_dict().items():
        assert torch.equal(
            tensor.contiguous().view(torch.uint8), expected[name].contiguous().view(torch.uint8)
        ), name


def job_of(job, engine, load=Engine.load_weights, **options):
    """Joined: a trainer's tensors, which are returned, and the worker of an engine."""
    trainer, worker = job.trainer(), job.worker(**options)
    weights = checkpoint(1)
    for name, tensor in weights.items():
        trainer.add(name, tensor)
    worker.add_loaded(engine, load, weights)
    job.join()
    return trainer, worker, weights


def train(weights, version):
    for name, tensor in checkpoint(version).items():
        weights[name].copy_(tensor)


@pytest.mark.parametrize("mode", ["shadow-copy", "in-place"])
def test_what_a_worker_receives_equals_a_fresh_load(mode):
    engine = Engine()
    with Job() as job:
        trainer, worker, weights = job_of(job, engine, engine.load_weights, mode=mode)
        for version in (1, 2):
            train(weights, version)
            publish = trainer.publish_async(version, deadline=PATIENCE)
            assert worker.receive(deadline=PATIENCE) == version
            publish.committed.wait(PATIENCE)
            assert_loaded(engine, version)


def test_adding_leaves_the_model_as_it_is():
    engine = Engine()
    engine.load_weights(iter(checkpoint(7).items()))
    before = {name: tensor.data_ptr() for name, tensor in engine.state_dict().items()}
    with waybill.Worker(mode="in-place") as worker:
        recording = worker.add_loaded(engine, engine.load_weights, checkpoint(1))
    assert_loaded(engine, 7)
    assert {n: t.data_ptr() for n, t in engine.state_dict().items()} == before
    assert recording.unread() == ["inv_freq"]
    assert "cos" not in recording.targets()


def test_a_module_that_keeps_a_process_group_can_be_recorded(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        engine = Engine()
        engine.group = torch.distributed.group.WORLD
        with waybill.Worker(mode="in-place") as worker:
            recording = worker.add_loaded(engine, engine.load_weights, checkpoint(1))
        assert "qkv" in recording.targets()
    finally:
        torch.distributed.destroy_process_group()


def test_a_recording_that_was_kept_is_enough(tmp_path):
    with waybill.Worker(mode="in-place") as worker:
        kept = worker.add_loaded(
            Engine(), Engine.load_weights, checkpoint(1), cache=tmp_path, depends_on={"rank": RANK}
        ).to_json()
    engine = Engine()
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        for name, tensor in checkpoint(3).items():
            trainer.add(name, tensor)
        worker.add_loaded(engine, Recording.from_json(kept))
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    assert_loaded(engine, 3)


def test_a_recording_of_other_parameters_is_refused_by_name():
    with waybill.Worker(mode="in-place") as worker:
        recording = worker.add_loaded(Engine(), Engine.load_weights, checkpoint(1))
    repacked = Engine()
    repacked.w2 = torch.nn.Parameter(repacked.w2.data.transpose(1, 2).contiguous())
    with waybill.Worker(mode="in-place") as worker:
        with pytest.raises(waybill.InvalidArgument, match='"w2" was recorded with shape'):
            worker.add_loaded(repacked, recording)


def test_what_is_loaded_need_not_be_listed():
    engine = Engine()
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        for name, tensor in checkpoint(1).items():
            trainer.add(name, tensor)

        def join_as_an_engine():
            worker.add_loaded(engine, engine.load_weights)
            worker.join()

        assert together([trainer.join, join_as_an_engine]) == []
        trainer.publish(1).committed.wait(PATIENCE)
        assert_loaded(engine, 1)


def test_a_parameter_that_the_loader_leaves_is_refused_by_name():
    engine = Engine()
    tensors = checkpoint(1)
    del tensors["norm.weight"]
    with waybill.Worker(mode="in-place") as worker:
        with pytest.raises(waybill.FailedPrecondition, match='"norm": 8 of 8 elements'):
            worker.add_loaded(engine, engine.load_weights, tensors)
        recording = worker.add_loaded(engine, engine.load_weights, tensors, optional=["norm"])
    assert "norm" not in recording.targets()


def rebind(engine):
    """Does what vLLM's replace_parameter() does when it repacks weights."""
    engine.w13.data = engine.w13.data.clone()


def replace(engine):
    engine.w13 = torch.nn.Parameter(engine.w13.data.clone(), requires_grad=False)


@pytest.mark.parametrize("move", [rebind, replace])
@pytest.mark.parametrize("mode", ["shadow-copy", "in-place"])
def test_a_parameter_that_the_engine_has_moved_is_refused_by_name(mode, move):
    engine = Engine()
    with Job() as job:
        trainer, worker, _ = job_of(job, engine, mode=mode)
        publish = trainer.publish_async(1, deadline=PATIENCE)
        assert worker.receive(1, deadline=PATIENCE) == 1
        publish.committed.wait(PATIENCE)
        move(engine)
        publish = trainer.publish_async(2, deadline=PATIENCE)
        with pytest.raises(waybill.WaybillError, match='"w13" has moved since it was added'):
            worker.receive(deadline=PATIENCE)
        with pytest.raises(waybill.WaybillError, match='"w13" has moved since it was added'):
            publish.committed.wait(PATIENCE)
        assert worker.state.shown_version == 1


def test_an_aborted_version_raises_its_reason():
    engine, other = Engine(), Engine()
    with Job() as job:
        trainer = job.trainer()
        workers = [
            job.worker(rank=rank, world=2, mode="in-place", ask=("prepare",)) for rank in range(2)
        ]
        for name, tensor in checkpoint(1).items():
            trainer.add(name, tensor)
        for worker, model in zip(workers, (engine, other), strict=True):
            worker.add_loaded(model, model.load_weights, checkpoint(1))
        job.join()
        publish = trainer.publish_async(1, deadline=PATIENCE)
        for event in workers[1].events(PATIENCE):
            if isinstance(event, waybill.Prepare):
                event.refuse("the cache is being rebuilt")
                break
        with pytest.raises(waybill.WaybillError, match="the cache is being rebuilt"):
            workers[0].receive(deadline=PATIENCE)
        with pytest.raises(waybill.WaybillError, match="the cache is being rebuilt"):
            publish.committed.wait(PATIENCE)
        # The other worker has still to read the end of version 1.
        publish = trainer.publish_async(2, deadline=PATIENCE)
        assert together([lambda w=w: w.receive(2, deadline=PATIENCE) for w in workers]) == []
        assert [worker.state.shown_version for worker in workers] == [2, 2]
        publish.committed.wait(PATIENCE)


def test_a_version_that_is_shown_is_not_waited_for():
    engine = Engine()
    with Job() as job:
        trainer, worker, _ = job_of(job, engine, mode="shadow-copy")
        for version in (1, 2):
            trainer.publish(version).committed.wait(PATIENCE)
        assert worker.receive() == 1
        assert worker.receive(1, deadline=PATIENCE) == 2
        assert worker.receive(2, deadline=PATIENCE) == 2
        with pytest.raises(waybill.DeadlineExceeded, match="version 3 was not shown within 0.01 s"):
            worker.receive(3, deadline=0.01)
        with pytest.raises(waybill.DeadlineExceeded, match="an update was not shown"):
            worker.receive(deadline=0.01)
        worker.leave()
        with pytest.raises(waybill.Cancelled, match="has left"):
            worker.receive()


def test_a_step_after_the_commit_runs_before_the_version_is_reported_as_shown():
    engine, seen = Engine(), []
    with Job() as job:
        trainer, worker, _ = job_of(job, engine, mode="shadow-copy", ask=("commit",))
        publish = trainer.publish_async(1, deadline=PATIENCE)

        def step():
            assert_loaded(engine, 1)
            seen.append("all" in publish.outcomes)

        assert worker.receive(1, deadline=PATIENCE, after_commit=step) == 1
        publish.committed.wait(PATIENCE)
        assert seen == [False]


def test_a_step_that_fails_after_the_commit_is_raised_and_told_and_the_version_stays():
    engine = Engine()
    with Job() as job:
        trainer, worker, _ = job_of(job, engine, mode="shadow-copy", ask=("commit",))
        publish = trainer.publish_async(1, deadline=PATIENCE)

        def step():
            raise RuntimeError("the layer cannot be repacked")

        with pytest.raises(RuntimeError, match="the layer cannot be repacked"):
            worker.receive(1, deadline=PATIENCE, after_commit=step)
        said = "version 1 is committed, but worker 0 cannot show it: the layer cannot be repacked"
        with pytest.raises(waybill.FailedPrecondition, match=said):
            publish.committed.wait(PATIENCE)
        assert publish.outcomes.keys() == {"all"} and not publish.given_up
        assert worker.state.shown_version == 1
        publish = trainer.publish_async(2, deadline=PATIENCE)
        assert worker.receive(2, deadline=PATIENCE, after_commit=lambda: None) == 2
        publish.committed.wait(PATIENCE)


def test_a_step_before_the_commit_sees_the_old_weights_and_may_veto_the_new_ones():
    engine = Engine()
    with Job() as job:
        asked = ("arrived", "commit")
        trainer, worker, weights = job_of(job, engine, mode="shadow-copy", ask=asked)
        publish = trainer.publish_async(1, deadline=PATIENCE)
        assert worker.receive(1, deadline=PATIENCE) == 1
        publish.committed.wait(PATIENCE)

        def step():
            assert_loaded(engine, 1)
            raise RuntimeError("the engine sleeps")

        train(weights, 2)
        publish = trainer.publish_async(2, deadline=PATIENCE)
        publish.sent.wait(PATIENCE)  # The engine has not been called yet.
        assert_loaded(engine, 1)
        with pytest.raises(RuntimeError, match="the engine sleeps"):
            worker.receive(2, deadline=PATIENCE, before_commit=step)
        with pytest.raises(waybill.FailedPrecondition, match="worker 0: vetoed: the engine sleeps"):
            publish.committed.wait(PATIENCE)
        assert publish.given_up == {"all"}
        assert_loaded(engine, 1)


def test_an_error_that_is_no_answer_is_raised_at_once(monkeypatch):
    with Job() as job:
        trainer, worker, _ = job_of(
            job, Engine(), mode="shadow-copy", ask=("prepare", "arrived", "commit")
        )

        def fail():
            raise RuntimeError("torch cannot tell")

        monkeypatch.setattr(worker, "_find_moved", fail)
        trainer.publish_async(1, deadline=10 * PATIENCE)  # No Abort comes before receive() ends.
        with pytest.raises(RuntimeError, match="torch cannot tell"):
            worker.receive(1, deadline=PATIENCE)


def test_a_step_of_receive_needs_a_worker_that_is_asked():
    with Job() as job:
        _, worker, _ = job_of(job, Engine(), mode="shadow-copy")
        with pytest.raises(waybill.InvalidArgument, match='add "arrived" to `ask`'):
            worker.receive(1, before_commit=lambda: None)
        with pytest.raises(waybill.InvalidArgument, match='add "commit" to `ask`'):
            worker.receive(1, after_commit=lambda: None)
