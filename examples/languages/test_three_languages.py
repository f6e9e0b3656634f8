"""One update, three languages: FSDP2's trainers feed groups of Python, Rust and Go at once."""

import json
import struct
import sys

import pytest

from examples.languages.job import controller, program, started

pytest.importorskip("torch")

import waybill  # noqa: E402

VERSIONS = 3

# The parameters of fsdp2_trainer.py's model, all F32.
SHAPES = {"0.weight": (33, 16), "0.bias": (33,), "2.weight": (10, 33), "2.bias": (10,)}


def write_checkpoint(folder):
    """Of zeros, for its names and shapes: workers begin without weights."""
    tensors, end = {}, 0
    for name, shape in SHAPES.items():
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(tensors).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(end)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")


def fnv1a(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return digest


def memory_of(snapshot, places, size):
    """A worker's region as the others have it, from the tensors that Python names."""
    memory = bytearray(size)
    for place in places:
        data, begin = snapshot.memory(place["name"]), place["offset_bytes"]
        memory[begin : begin + len(data)] = data
    return memory


def serve(address, environment, checkpoint):
    """Python's worker: what it shows, as the others say it."""
    layout = waybill.Layout(checkpoint=checkpoint)
    places = layout.worker_parameters("dp=1")
    (size,) = layout.worker_manifest("dp=1").region_sizes
    token, said = environment["WAYBILL_TOKEN"], []
    with waybill.Worker(address, group="python", token=token, ask=["commit"]) as worker:
        for place in places:
            worker.add(place["name"], shape=place["shape"], dtype="float32")
        worker.join(deadline=120)
        for event in worker.events(timeout=120):
            if isinstance(event, waybill.Commit):
                with worker.snapshot() as snapshot:
                    digest = fnv1a(memory_of(snapshot, places, size))
                    said.append(f"shown {snapshot.version} {digest:016x}\n")
                event.shown()
                if event.version == VERSIONS:
                    break
        worker.leave()
    return said


def test_each_shows_the_same_bytes_of_each_version(tmp_path):
    write_checkpoint(tmp_path)
    rust, go = (program(f"bindings/{language}/programs/worker") for language in ("rust", "go"))
    shared = ["--world", "1", "--rank", "0", "--versions", str(VERSIONS)]
    shared += ["--checkpoint", str(tmp_path), "--sharding", "dp=1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
    required = ["--require", "python", "--require", "rust", "--require", "go"]
    with controller(tmp_path, *required) as (address, environment):
        environment.update(HOME=str(tmp_path), OMP_NUM_THREADS="1")
        rank = [*shared, "--controller", address, "--group"]
        with (
            started([rust, *rank, "rust"], environment) as in_rust,
            started([go, *rank, "go"], environment) as in_go,
            started([*torchrun, "examples/python/fsdp2_trainer.py", address], environment) as train,
        ):
            in_python = serve(address, environment, tmp_path)
            others = [process.communicate(timeout=60)[0] for process in (in_rust, in_go)]
            trained = train.communicate(timeout=60)[0]
    assert [process.returncode for process in (train, in_rust, in_go)] == [0, 0, 0]
    assert trained.count("the weights add up to") == VERSIONS
    assert len(set(in_python)) == VERSIONS
    for said in others:
        lines = said.splitlines(keepends=True)
        assert [line for line in lines if line.startswith("shown")] == in_python
