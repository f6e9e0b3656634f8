# SPDX-License-Identifier: Apache-2.0
"""Records what vLLM's own load_weights() copies, for one rank of a model.

    python vllm_recordings.py golden      compares tiny models with maps that were read from loaded ones, every element
    python vllm_recordings.py loaded      compares tiny models with what they have after they loaded numbered elements
    python vllm_recordings.py quantised   sends BF16 weights to tiny FP8 models, and compares every byte with loading the
                                          quantised checkpoint
    python vllm_recordings.py sizes       records models of real size, and prints a table

Each model is made in its own process, because vLLM can make one per process. `run` prepares the environment.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
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
QUANTISED = [
    ("tiny-qwen3-moe-fp8", 1, 0, False),
    ("tiny-qwen3-moe-fp8", 2, 1, False),
    ("tiny-qwen3-moe-fp8", 2, 0, True),
    ("tiny-deepseek-v3-fp8", 2, 1, False),
]
LOADED = [
    (name, tp, rank, experts)
    for name in (
        "tiny-glm-4.5",
        "tiny-gpt-oss-bf16",
        "tiny-gpt-oss-mxfp4",
        "tiny-gpt-oss-mxfp4-padded",
        "tiny-qwen3-next",
        "tiny-llama-4",
    )
    for tp, rank, experts in ((1, 0, False), (2, 1, False), (2, 1, True))
]
LOADED += [
    (name, tp, rank, False)
    for name in (
        "tiny-glm-4v",
        "tiny-internvl",
        "tiny-mistral3",
        "tiny-qwen2.5-vl",
        "tiny-qwen3-vl",
    )
    for tp, rank in ((1, 0), (2, 1))
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


def compare_loaded(name, tp, rank, experts_parallel):
    """Raises unless every element comes from where the model has it from after it has loaded numbered elements.

    The elements of the checkpoint are numbered from 1. The model loads them three times, each time one byte of the number, which
    every dtype of the checkpoint holds exactly.
    """
    import numpy
    import torch
    from checkpoints import checkpoint_of, config_of
    from vllm_rank import rank_of
    from waybill.torch import meta_twin, record

    checkpoint, first, total = checkpoint_of(name), {}, 1
    for tensor, (shape, _) in checkpoint.items():
        first[tensor] = total
        total += torch.Size(shape).numel()
    assert total <= 1 << 24

    def one_byte(shift):
        for tensor, (shape, dtype) in checkpoint.items():
            begin = first[tensor]
            numbers = torch.arange(begin, begin + torch.Size(shape).numel()) >> shift & 255
            yield tensor, numbers.to(getattr(torch, dtype)).reshape(shape)

    gpu = "quantization_config" in config_of(name)
    options = {"experts_parallel": experts_parallel, "gpu": gpu, "device": "cpu"}
    with rank_of(name, tp, rank, **options) as model:
        twin = meta_twin(model)
        targets = dict(twin.named_parameters())
        # It imports vLLM, which must not look at this machine before rank_of().
        from waybill.integrations.vllm.layers import padded_parameters

        padded = padded_parameters(twin)
        recording = record(twin.load_weights, checkpoint, targets, skip=SKIP, padded=padded)
        parameters = {n: p for n, p in model.named_parameters() if n in recording.targets()}
        wanted = {target: 0 for target in parameters}
        for shift in (0, 8, 16):
            for parameter in parameters.values():
                parameter.data.zero_()
            model.load_weights(one_byte(shift))
            for target, parameter in parameters.items():
                loaded = parameter.detach().reshape(-1).to(torch.int64).numpy()
                wanted[target] = wanted[target] + (loaded << shift)
    got = {target: numpy.zeros_like(numbers) for target, numbers in wanted.items()}
    for route in recording.routes():
        got[route.target][offsets(route.to)] = first[route.tensor] + offsets(route.of)
    assert all(fill.value == 0 for fill in recording.fills())
    where = f"{name} tp{tp} rank {rank}{', EP' if experts_parallel else ''}"
    wrong = [target for target in wanted if (wanted[target] != got[target]).any()]
    if wrong:
        raise SystemExit(f"{where}: {len(wrong)} of {len(wanted)} parameters differ: {wrong[:5]}")
    elements = sum(map(len, wanted.values()))
    print(f"{where}: {elements} elements of {len(wanted)} parameters, as loaded")


def send(name, tp, rank, experts_parallel):
    """Ends the program unless FP8 parameters equal those of vLLM's own load of the quantised checkpoint."""
    import torch
    import waybill
    from checkpoints import before_quantisation, checkpoint_of, quantise
    from vllm_rank import rank_of
    from waybill.dtypes import NAMES, dtype_number
    from waybill.integrations import fp8_blocks
    from waybill.torch import meta_twin, record

    weights, named = before_quantisation(checkpoint_of(name))
    described = {n: (tuple(t.shape), NAMES[dtype_number(t.dtype)]) for n, t in weights.items()}
    options = {"experts_parallel": experts_parallel, "gpu": True, "device": "cpu"}
    with rank_of(name, tp, rank, **options) as model:
        twin = meta_twin(model)
        targets = dict(twin.named_parameters())
        recording, quantised = fp8_blocks.record_quantised(
            lambda its, optional: record(
                twin.load_weights, its, targets, skip=SKIP, optional=optional
            ),
            described,
            targets,
        )
        assert quantised <= named, sorted(quantised - named)[:5]
        model.load_weights(iter(quantise(weights, named).items()))
        parameters = dict(model.named_parameters())
        parts = recording.parts()
        wanted = {target: parameters[target].detach().clone() for target in parts}
        with waybill.Controller(listen="127.0.0.1:0") as controller:
            trainer = waybill.Trainer(controller.address, rank=0, world=1)
            worker = waybill.Worker(controller.address, rank=0, world=1, mode="in-place", ask=())
            for tensor, values in weights.items():
                trainer.add(tensor, values)
            for target, its in parts.items():
                parameters[target].data.view(torch.uint8).zero_()
                worker.add(
                    target,
                    parameters[target],
                    parts=fp8_blocks.parts_on_the_way(its, described, quantised),
                )
            join = threading.Thread(target=worker.join, args=(60,))
            join.start()
            trainer.join(60)
            join.join()
            trainer.publish(1, deadline=60).committed.wait(60)
            trainer.close()
            worker.close()
    wrong = [
        target
        for target, expected in wanted.items()
        if not torch.equal(
            parameters[target].data.contiguous().view(torch.uint8),
            expected.contiguous().view(torch.uint8),
        )
    ]
    if wrong:
        raise SystemExit(
            f"{name} tp{tp} rank {rank}: {len(wrong)} of {len(wanted)} differ: {wrong[:5]}"
        )
    scales = sum(target.endswith("scale_inv") for target in wanted)
    print(
        f"{name} tp{tp} rank {rank}: {len(wanted)} parameters, {scales} of them scales, byte for byte"
    )


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


# What is done for which models.
CASES = {
    "golden": (compare, GOLDEN),
    "loaded": (compare_loaded, LOADED),
    "quantised": (send, QUANTISED),
    "sizes": (measure, SIZES),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=[*CASES])
    parser.add_argument("one", nargs="*", help="one case, in this process: name, TP, rank, ep or -")
    given = parser.parse_args()
    if given.one:
        name, tp, rank, experts = given.one
        run, _ = CASES[given.what]
        run(name, int(tp), int(rank), experts == "ep")
        return
    if given.what == "sizes":
        print(
            "| model and rank | tensors | seconds | MB | routes | patterns | bytes of JSON | ms to read |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
    failed = 0
    for name, tp, rank, experts in CASES[given.what][1]:
        case = [name, str(tp), str(rank), "ep" if experts else "-"]
        command = [sys.executable, __file__, given.what, *case]
        failed += subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0
    if failed:
        raise SystemExit(f"{failed} failed")


if __name__ == "__main__":
    main()
