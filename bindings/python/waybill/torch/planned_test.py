# SPDX-License-Identifier: Apache-2.0
"""`waybill plan` and `waybill simulate` of recordings, against those of the layout that the recorded loader follows."""

import json
import subprocess
from pathlib import Path

import pytest
from qwen3_loader import Qwen3Loader

import waybill

torch = pytest.importorskip("torch")

from waybill.torch import Recording, record  # noqa: E402

COMMAND = Path("tools/waybill/waybill").resolve()
DEADLINE = 60


def run(command, *arguments, expect=0):
    """Returns what the command prints, or its error."""
    done = subprocess.run(
        [COMMAND, command, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done.stderr if expect else done.stdout


def record_rank(layout, sharding, ranks, rank, experts, head):
    parameters = {
        p["name"]: torch.empty(p["shape"], dtype=torch.bfloat16, device="meta")
        for p in layout.worker_parameters(sharding, rank)
    }
    loader = Qwen3Loader(parameters, ranks, rank, experts, head)
    tensors = layout.trainer_manifest("whole").describe()["tensors"]
    return record(
        loader.load_weights,
        {t["name"]: (tuple(t["shape"]), t["dtype"]) for t in tensors},
        parameters,
    )


def write_recordings(folder, recordings):
    """Writes a manifest for each recording, as an operator does who has their JSON."""
    files = []
    for rank, recording in enumerate(recordings):
        files.append(str(folder / f"rank{rank}.manifest"))
        manifest = Recording.from_json(recording.to_json()).manifest()
        Path(files[-1]).write_bytes(manifest.encode())
    return files


def describe(folder, **sides):
    """Writes a description. JSON is YAML."""
    path = folder / "cluster.yaml"
    path.write_text(json.dumps(sides))
    return str(path)


# model, layers, the engine's sharding, ranks, experts of a rank or None for a part of each, the size of a head
MODELS = [
    ("qwen3-0.6b", 2, "tp=2", 2, None, 128),
    ("tiny-qwen3-moe", 3, "tp=4", 4, None, 32),
    ("tiny-qwen3-moe", 3, "tp=4,ep=4", 4, 2, 32),
]


@pytest.fixture(params=MODELS, ids=[f"{m[0]}-{m[2]}" for m in MODELS])
def job(request, tmp_path):
    """The description of a job with recordings, and that of the same job with a sharding."""
    name, layers, sharding, ranks, experts, head = request.param
    layout = waybill.Layout(model=name, layers=layers)
    recordings = [
        record_rank(
            layout,
            sharding,
            ranks,
            rank,
            experts and range(rank * experts, (rank + 1) * experts),
            head,
        )
        for rank in range(ranks)
    ]
    sides = {"model": {"name": name, "layers": layers}, "trainers": {"sharding": "fsdp=2"}}
    workers = {"manifests": write_recordings(tmp_path, recordings), "replicas": 2}
    (tmp_path / "layout").mkdir()
    return (
        describe(tmp_path, **sides, workers=workers),
        describe(tmp_path / "layout", **sides, workers={"sharding": f"{sharding},replicas=2"}),
    )


def test_a_plan_of_recordings_moves_what_that_of_the_layout_moves(job):
    recorded, described = (json.loads(run("plan", "--json", path)) for path in job)
    assert recorded["bytes"] == described["bytes"] > 0
    for side in ("trainers", "workers"):
        moved = [[rank["bytes"] for rank in plan[side]] for plan in (recorded, described)]
        assert moved[0] == moved[1], side


def test_a_simulation_of_recordings_predicts_what_that_of_the_layout_predicts(job):
    recorded, described = (json.loads(run("simulate", "--json", path)) for path in job)
    assert recorded["pairs"] == described["pairs"]
    assert recorded["seconds"] == pytest.approx(described["seconds"], rel=0.01)
    ranks = len(recorded["workers"])
    sweep = json.loads(
        run("simulate", "--json", job[0], "--sweep", f"workers={ranks}..{2 * ranks}")
    )
    assert [point["ranks"] for point in sweep["sweep"]["points"]] == [ranks, 2 * ranks]


def test_manifests_of_both_sides_need_no_model(tmp_path):
    layout = waybill.Layout(model="tiny-qwen3-moe", layers=1)
    files = {}
    for side, manifest in (
        ("trainers", layout.trainer_manifest("fsdp=2", 1)),
        ("workers", layout.worker_manifest("tp=2", 0)),
    ):
        files[side] = str(tmp_path / side)
        Path(files[side]).write_bytes(manifest.encode())
    whole = tmp_path / "whole"
    whole.write_bytes(layout.trainer_manifest("fsdp=2", 0).encode())
    path = describe(
        tmp_path,
        trainers={"manifests": [str(whole), files["trainers"]]},
        workers={"manifests": [files["workers"]]},
    )
    worker = layout.worker_manifest("tp=2", 0)
    assert (
        json.loads(run("plan", "--json", path))["bytes"]
        == waybill.Plan.build(
            [layout.trainer_manifest("fsdp=2", rank) for rank in range(2)], [worker]
        ).summary.bytes
    )


def test_what_is_no_manifest_is_named_with_its_file_and_key(tmp_path):
    sides = {"model": {"name": "tiny-qwen3-moe"}, "trainers": {"sharding": "fsdp=2"}}
    none = str(tmp_path / "none")
    path = describe(tmp_path, **sides, workers={"manifests": [none]})
    error = run("plan", path, expect=1)
    assert f'{path}:1: key "workers.manifests": cannot read the manifest {none}' in error
    Path(none).write_text('{"waybill_recording": 1}')
    for command in ("plan", "simulate"):
        error = run(command, path, expect=1)
        assert f'{path}:1: key "workers.manifests": reading the manifest {none}: ' in error
