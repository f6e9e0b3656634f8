# SPDX-License-Identifier: Apache-2.0
"""The demo, over models, shardings and modes, and what workers dump against other people's tools."""

import numpy
import processes
import pytest
import safetensors.numpy

CASES = [
    # model, layers, trainers, workers, more
    ("gpt2", 2, "fsdp=2", "tp=2", []),
    ("gpt2", 1, "fsdp=3", "tp=1", ["--dtype", "BF16"]),
    ("qwen3-0.6b", 1, "fsdp=2,tp=2", "tp=2,dp=2", []),
    ("gpt2", 2, "pp=2,replicas=2", "tp=4", ["--mode", "shadow-copy"]),
    ("qwen3-0.6b", 1, "tp=2", "tp=2", ["--mode", "in-place"]),
    ("tiny-qwen3-moe", 3, "fsdp=4", "tp=2,dp=2,ep=4", []),
    ("tiny-qwen3-moe", 2, "megatron,tp=2,ep=2", "tp=4", ["--format", "fp8-block"]),
    ("tiny-deepseek-v3", 3, "fsdp=2,replicas=2", "tp=2,dp=2,ep=4,engine=sglang", []),
    ("tiny-qwen3-moe", 3, "fsdp=2", "tp=1,replicas=3", ["--relays", "always"]),
    ("tiny-deepseek-v3", 3, "fsdp=2", "tp=2,dp=2,ep=4", ["--relays", "always", "--fabric", "tcp"]),
    (
        "tiny-deepseek-v3",
        3,
        "fsdp=2,replicas=2",
        "tp=2,ep=2,replicas=3",
        ["--relays", "always", "--format", "fp8-block"],
    ),
    (
        "tiny-deepseek-v3",
        2,
        "fsdp1,fsdp=3,params=original",
        "tp=2,ep=2,replicas=2",
        ["--format", "fp8-block"],
    ),
]


@pytest.mark.parametrize("model,layers,trainers,workers,more", CASES)
def test_every_element_of_every_version_is_right(model, layers, trainers, workers, more):
    report = processes.demo(
        "--model", model, "--layers", str(layers), "--trainers", trainers, "--workers", workers,
        "--versions", "2", *more,
    )  # fmt: skip
    assert len(report["updates"]) == 2
    assert report["elements_checked"] > 0
    # Stages differ, and nobody else holds their tensors; the twins have few and small tensors.
    if "pp" not in trainers and not model.startswith("tiny-"):
        assert report["imbalance"] < 1.02


@pytest.mark.parametrize("mode", ["shadow", "shadow-copy"])
def test_of_one_per_cent_changed_elements_less_than_one_per_cent_of_the_bytes_travel(mode):
    report = processes.demo(
        "--model", "qwen3-0.6b", "--layers", "1", "--versions", "3", "--fabric", "tcp",
        "--mode", mode, "--changes", "always", "--changed", "0.01",
    )  # fmt: skip
    assert report["elements_checked"] > 0
    for trainer in report["trainers"]:
        assert 0.005 < trainer["moved_bytes"] / trainer["weight_bytes"] < 0.01


@pytest.mark.parametrize("fabric", ["local", "tcp"])
def test_versions_from_images_are_right(fabric):
    report = processes.demo(
        "--model", "gpt2", "--layers", "1", "--versions", "3", "--fabric", fabric, "--images"
    )
    assert len(report["updates"]) == 3 and report["elements_checked"] > 0


def make_checkpoint(directory):
    random = numpy.random.default_rng(7)
    tensors = {
        "a": random.standard_normal((33, 8)).astype(numpy.float32),
        "b": random.integers(-100, 100, (5,), dtype=numpy.int8),
        "c": random.standard_normal((4, 3, 2)).astype(numpy.float16),
        "scalar": numpy.array(2.5, dtype=numpy.float32),
    }
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")
    return tensors


def test_a_dump_is_what_the_checkpoint_was_plus_the_change(tmp_path):
    tensors = make_checkpoint(tmp_path)
    out = tmp_path / "out"
    processes.demo(
        "--checkpoint", str(tmp_path), "--workers", "1", "--versions", "1", "--dump", str(out)
    )
    dumped = safetensors.numpy.load_file(out / "worker-0.safetensors")
    assert set(dumped) == set(tensors)
    for name, tensor in tensors.items():
        assert dumped[name].shape == tensor.shape and dumped[name].dtype == tensor.dtype
        unsigned = numpy.dtype(f"u{tensor.dtype.itemsize}")
        difference = tensor.reshape(-1).view(unsigned) ^ dumped[name].reshape(-1).view(unsigned)
        allowed = {1: 0x1, 2: 0x7F, 4: 0x3FFFFF}[tensor.dtype.itemsize]
        assert not numpy.any(difference & ~unsigned.type(allowed)), name
    assert dumped["a"].tobytes() != tensors["a"].tobytes()


def test_rows_of_a_generic_model_are_cut_and_arrive(tmp_path):
    make_checkpoint(tmp_path)
    report = processes.demo(
        "--checkpoint", str(tmp_path), "--trainers", "4", "--workers", "3", "--versions", "3"
    )
    assert report["elements_checked"] > 0


def test_digests_can_be_off():
    report = processes.demo("--model", "gpt2", "--layers", "1", "--versions", "1", "--no-digests")
    assert report["updates"][0]["seconds"] > 0


def test_counts_are_a_function_of_the_plan():
    def counts():
        report = processes.demo("--model", "gpt2", "--layers", "1", "--versions", "2", "--no-check")
        keys = ("bytes", "stores", "writes", "immediates")
        return [{k: t["last_update"][k] for k in keys} for t in report["trainers"]]

    first = counts()
    assert first == counts()
    assert [t["writes"] for t in first] == [0, 0]  # Everything is mapped.
    assert [t["immediates"] for t in first] == [2, 2]
