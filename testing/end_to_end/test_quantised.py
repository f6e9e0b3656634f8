# SPDX-License-Identifier: Apache-2.0
"""Workers served in FP8, by real processes: every byte is what the formats' definitions say."""

import dataclasses

import ml_dtypes
import numpy
import processes
import pytest
import quantised_reference as reference

ARRANGEMENTS = [
    # fabric, mode, trainers, workers, tp of the workers, relays
    ("auto", "shadow", "3", "2", 2, "never"),  # Rows that cut blocks.
    ("auto", "shadow-copy", "fsdp=2,tp=2", "tp=2", 2, "never"),
    ("auto", "in-place", "5", "tp=4", 4, "never"),
    ("auto", "shadow", "fsdp=2,replicas=2", "tp=1,dp=3", 1, "always"),
    ("tcp", "shadow", "fsdp=2,replicas=2", "tp=2,dp=2", 2, "never"),
    ("tcp", "shadow-copy", "3", "1", 1, "never"),
    ("tcp", "in-place", "fsdp=3,tp=2", "2", 2, "never"),
    ("tcp", "in-place", "3", "tp=2,dp=2", 2, "always"),
]


def demo(folder, *arguments, versions=2):
    """The demo's report, and what the workers held at its end."""
    out = folder / "out"
    report = processes.demo(
        "--checkpoint", str(folder), "--versions", str(versions), "--dump", str(out), *arguments
    )
    held = [
        reference.read_raw(out / f"worker-{w}.safetensors") for w in range(len(list(out.iterdir())))
    ]
    return report, held


def expect(held, expected):
    assert set(held) == set(expected)
    for name, data in expected.items():
        assert held[name][2] == data, name


@pytest.mark.parametrize("name", reference.FORMATS)
@pytest.mark.parametrize("fabric,mode,trainers,workers,tp,relays", ARRANGEMENTS)
def test_every_byte_is_that_of_quantising_whole_tensors(
    tmp_path, name, fabric, mode, trainers, workers, tp, relays
):
    tensors = reference.write_checkpoint(tmp_path)
    report, held = demo(
        tmp_path, "--format", name, "--fabric", fabric, "--mode", mode,
        "--trainers", trainers, "--workers", workers, "--relays", relays,
    )  # fmt: skip
    wanted = reference.Reference(tensors, 2, tp, reference.FORMATS[name])
    for worker, found in enumerate(held):
        expect(found, wanted.held(worker % tp))
    for trainer in report["trainers"]:
        carried = [lane.split(":")[0] for lane in trainer["lanes"]]
        assert set(carried) == {"local" if fabric == "auto" else "tcp"}


def test_a_model_of_floats_is_rounded_to_bf16_before_it_is_quantised(tmp_path):
    tensors = reference.write_checkpoint(tmp_path, dtype=numpy.float32)
    _, held = demo(tmp_path, "--format", "fp8-block", "--trainers", "3", "--workers", "2")
    wanted = reference.Reference(tensors, 2, 2, reference.FORMATS["fp8-block"])
    for worker, found in enumerate(held):
        expect(found, wanted.held(worker))
        assert found["model.norm.weight"][0] == "F32"


def test_scales_lie_on_one_grid_of_the_fused_parameter(tmp_path):
    """That of an engine, which knows the parameter and its scales, and no parts."""
    tensors = reference.write_checkpoint(tmp_path)
    _, held = demo(tmp_path, "--format", "fp8-block", "--trainers", "3", "--workers", "1")
    name = f"{reference.LAYER}self_attn.qkv_proj.weight"
    _, shape, data = held[0][name]
    dtype, grid, scale_data = held[0][name + "_scale_inv"]
    assert dtype == "F32"
    cell = shape[0] // grid[0]
    assert grid == (shape[0] / cell, 1)
    codes = numpy.frombuffer(data, ml_dtypes.float8_e4m3fn).reshape(shape).astype(numpy.float32)
    scales = numpy.frombuffer(scale_data, numpy.float32).reshape(grid)
    served = codes * numpy.repeat(scales, cell, axis=0)
    stored = numpy.concatenate([reference.of_version(2, n, tensors[n]) for n in reference.QKV])
    # Half of the distance to a neighbour: 1/16 of a number, or half of the smallest.
    allowed = numpy.maximum(numpy.abs(served) / 15, numpy.repeat(scales, cell, axis=0) * 2.0**-10)
    assert numpy.all(numpy.abs(served - stored.astype(numpy.float32)) <= allowed * 1.001)


def test_what_config_json_says_is_served_without_being_asked_for(tmp_path):
    kept = f"{reference.LAYER}mlp.down_proj"
    tensors = reference.write_checkpoint(
        tmp_path,
        quantization_config={
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [64, 32],
            "modules_to_not_convert": ["lm_head", kept],
        },
    )
    form = dataclasses.replace(reference.FORMATS["fp8-block"], block=(64, 32))
    wanted = reference.Reference(tensors, 1, 2, form, kept=[kept + ".weight"])
    _, held = demo(tmp_path, "--trainers", "3", "--workers", "2", versions=1)
    # vLLM's numbers for its key/value cache, which no tensor fills.
    scales = [f"{reference.LAYER}self_attn.attn.{x}_scale" for x in ("q", "k", "v", "prob")]
    for worker, found in enumerate(held):
        expect(found, wanted.held(worker) | {name: bytes(2) for name in scales})
        assert found[kept + ".weight"][0] == "BF16"


def test_a_name_overrides_config_json(tmp_path):
    tensors = reference.write_checkpoint(tmp_path, quantization_config={"quant_method": "gptq"})
    _, held = demo(tmp_path, "--format", "bf16", "--workers", "1", versions=1)
    expect(held[0], reference.Reference(tensors, 1, 1).held(0))


def test_a_quantization_config_that_is_not_known_is_refused(tmp_path):
    reference.write_checkpoint(tmp_path, quantization_config={"quant_method": "gptq"})
    _, why = processes.demo_that_fails("--checkpoint", str(tmp_path))
    assert (
        'quantization_config has quant_method "gptq", known is "fp8"; name a format (bf16 serves '
        "it unquantised) to go by that instead"
    ) in why


def test_a_model_that_is_stored_transposed_is_refused():
    _, why = processes.demo_that_fails("--model", "gpt2", "--layers", "1", "--format", "fp8-block")
    assert 'attn.c_attn.weight" is stored transposed, which is not quantised on the way' in why


def test_a_model_of_no_known_family_is_refused(tmp_path):
    reference.write_checkpoint(tmp_path, architectures=["OtherForCausalLM"])
    _, why = processes.demo_that_fails("--checkpoint", str(tmp_path), "--format", "mxfp8")
    assert (
        "quantise a generic model: which of its tensors are weights of layers is not known" in why
    )
    assert 'architecture "OtherForCausalLM" is not one of LlamaForCausalLM, Qwen2' in why


@pytest.mark.parametrize("fabric", ["auto", "tcp"])
def test_a_trainer_killed_between_those_it_owns_blocks_with_leaves_the_old_version(
    tmp_path, fabric
):
    # Large enough that the update takes longer than the kill.
    reference.write_checkpoint(tmp_path, vocabulary=100_000)
    out, why = processes.demo_that_fails(
        "--checkpoint", str(tmp_path), "--format", "fp8-block", "--fabric", fabric,
        "--trainers", "3", "--versions", "2", "--kill", "trainer 1",
    )  # fmt: skip
    for worker in (0, 1):
        assert f"worker {worker} still shows version 1, every byte right" in out
    assert processes.says_lost("trainer 1", why)
