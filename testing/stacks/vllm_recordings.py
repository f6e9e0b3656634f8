"""Records what vLLM's own load_weights() copies, for one rank of a model.

    python vllm_recordings.py golden      compares tiny models with maps that were read from loaded ones, every element
    python vllm_recordings.py sizes       records models of real size, and prints a table

Each model is made in a process of its own: vLLM has one a process. `run` prepares the environment.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAPS = [HERE / "golden", HERE.parents[1] / "bindings" / "python" / "testing" / "golden"]

# Name, tensor parallelism, rank, experts parallel.
GOLDEN = [
    ("tiny-qwen3", 4, 3, False),
    ("tiny-qwen3", 8, 5, False),
    ("tiny-llama", 2, 1, False),
    ("tiny-qwen3-moe", 4, 0, False),
    ("tiny-qwen3-moe", 4, 2, True),
    ("tiny-deepseek-v3-bf16", 4, 3, False),
]
SIZES = [
    ("qwen3-235b-a22b", 8, 3, False),
    ("deepseek-v3", 8, 0, False),
    ("kimi-k2", 16, 5, False),
    ("kimi-k2", 16, 5, True),
]
# vLLM computes them itself.
SKIP = ["*.k_scale", "*.v_scale", "*.q_scale", "*.prob_scale"]


def offsets(view):
    import numpy

    found = numpy.array([view.offset])
    for count, stride in zip(view.shape, view.strides, strict=True):
        found = (found[:, None] + numpy.arange(count) * stride).reshape(-1)
    return found


def compare(name, tp, rank, experts_parallel):
    """Raises unless every element comes from where a loaded model has it from; in maps 0 is padding."""
    import numpy
    import torch
    from vllm_rank import rank_of
    from waybill.torch import record

    file = f"vllm_{name}_tp{tp}r{rank}{'ep' if experts_parallel else ''}.json"
    golden = json.loads(next(path / file for path in MAPS if (path / file).exists()).read_text())
    tensors = {name: (shape, "float32") for name, (_, shape) in golden["source"].items()}
    options = {"experts_parallel": experts_parallel, "dtype": torch.float32}
    with rank_of(name, tp, rank, **options) as model:
        recording = record(model.load_weights, tensors, dict(model.named_parameters()))
    wanted = {name: numpy.zeros(shape, int).reshape(-1) for name, shape in golden["dest"].items()}
    for target, runs in golden["runs"].items():
        for at, first, count in runs:
            wanted[target][at : at + count] = numpy.arange(first, first + count)
    got = {name: numpy.zeros_like(numbers) for name, numbers in wanted.items()}
    for route in recording.routes():
        got[route.target][offsets(route.to)] = golden["source"][route.tensor][0] + offsets(route.of)
    wrong = [target for target in wanted if (wanted[target] != got[target]).any()]
    if wrong:
        raise SystemExit(f"{file}: {len(wrong)} of {len(wanted)} parameters differ: {wrong[:5]}")
    print(f"{file}: {sum(map(len, wanted.values()))} elements of {len(wanted)} parameters")


def measure(name, tp, rank, experts_parallel):
    from checkpoints import checkpoint_of, config_of
    from vllm_rank import rank_of
    from waybill.recording import Recording
    from waybill.torch import record

    tensors = checkpoint_of(name)
    gpu = config_of(name).get("quantization_config") is not None
    with rank_of(name, tp, rank, experts_parallel=experts_parallel, gpu=gpu) as model:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        recording = record(model.load_weights, tensors, dict(model.named_parameters()), skip=SKIP)
        seconds = time.monotonic() - began
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    text = recording.to_json()
    began = time.monotonic()
    assert Recording.from_json(text) == recording
    read = time.monotonic() - began
    print(
        f"| {name} tp{tp} rank {rank}{', EP' if experts_parallel else ''} | {len(tensors):,} | {seconds:.1f} | "
        f"{megabytes:.0f} | {sum(1 for _ in recording.routes()):,} | {recording.patterns} | {len(text):,} | "
        f"{read * 1000:.1f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["golden", "sizes"])
    parser.add_argument("one", nargs="*", help="one case, in this process: name, TP, rank, ep or -")
    given = parser.parse_args()
    if given.one:
        name, tp, rank, experts = given.one
        run = compare if given.what == "golden" else measure
        run(name, int(tp), int(rank), experts == "ep")
        return
    if given.what == "sizes":
        print(
            "| model and rank | tensors | seconds | MB | routes | patterns | bytes of JSON | ms to read |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
    failed = 0
    for name, tp, rank, experts in GOLDEN if given.what == "golden" else SIZES:
        case = [name, str(tp), str(rank), "ep" if experts else "-"]
        command = [sys.executable, __file__, given.what, *case]
        failed += subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0
    if failed:
        raise SystemExit(f"{failed} failed")


if __name__ == "__main__":
    main()
