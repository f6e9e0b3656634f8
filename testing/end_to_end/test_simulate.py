# SPDX-License-Identifier: Apache-2.0
"""`waybill simulate` and `waybill plan` of descriptions: what they print, and what they refuse."""

import json

import processes
import pytest

DESCRIPTION = """\
model: {name: qwen3-0.6b, layers: 2}
trainers:
  sharding: fsdp=4
  ranks_per_host: 4
  nics_per_host: 4
workers:
  sharding: tp=2
  ranks_per_host: 4
  nics_per_host: 4
"""


def predict(*arguments):
    out, _ = processes.run("simulate", "--json", *arguments)
    return json.loads(out)


def refusal(*arguments):
    _, err = processes.run(*arguments, expect=1)
    return err


@pytest.fixture
def described(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(DESCRIPTION)
    return str(path)


def test_every_byte_of_the_plan_crosses_the_network(described):
    prediction = predict(described)
    out, _ = processes.run("plan", "--json", described)
    plan = json.loads(out)
    assert prediction["bytes"] == plan["bytes"]
    assert prediction["plan"]["hash"] == plan["hash"]
    assert sum(pair[2] for pair in prediction["pairs"]) == plan["bytes"]
    assert [t["bytes"] for t in prediction["trainers"]] == [t["bytes"] for t in plan["trainers"]]


def test_an_update_takes_longer_than_the_bound_and_than_each_of_its_stages(described):
    prediction = predict(described)
    bounds = prediction["bounds"]
    assert prediction["seconds"] > max(bounds["egress"]["seconds"], bounds["ingress"]["seconds"])
    for rank in prediction["trainers"] + prediction["workers"]:
        for stage in rank["stages"].values():
            assert 0 <= stage["begin"] <= stage["end"] <= prediction["seconds"]


@pytest.mark.parametrize(
    "wrong,error",
    [
        (("qwen3-0.6b", "gpt5"), ':1: key "model.name": '),
        (("fsdp=4", "tp=7"), ':3: key "trainers.sharding": '),
        (("tp=2", "tp=3"), ':7: key "workers.sharding": '),
        (("tp=2\n", "tp=2\n  format: fp3\n"), ':8: key "workers.format": '),
    ],
)
def test_what_does_not_fit_the_model_is_named_with_file_and_line(described, wrong, error):
    with open(described, "w") as file:
        file.write(DESCRIPTION.replace(*wrong))
    for command in ("simulate", "plan"):
        assert described + error in refusal(command, described)


def test_a_warning_tells_one_engine_from_several():
    warning = (
        "warning: workers tp=2,dp=2 are one engine of 4 ranks, which holds its attention 2 times; "
        "2 engines are tp=2,replicas=2"
    )
    out, _ = processes.run("plan", "--layers", "1", "--workers", "tp=2,dp=2")
    assert warning in out
    out, _ = processes.run("plan", "--layers", "1", "--workers", "tp=2,replicas=2")
    assert "warning" not in out


def test_a_slower_network_makes_it_slower_by_its_bytes(described, tmp_path):
    slow = tmp_path / "slow.yaml"
    keys = "  nics_per_host: 4\n"
    slow.write_text(DESCRIPTION.replace(keys, keys + "  nic_gbit_per_second: 40\n"))
    fast, slower = predict(described), predict(str(slow))
    grown = slower["seconds"] - fast["seconds"]
    bound = slower["bounds"]["ingress"]["seconds"] - fast["bounds"]["ingress"]["seconds"]
    assert grown == pytest.approx(bound, rel=0.15)


def test_a_plan_by_options_is_that_of_the_same_description(described):
    # The hosts and NICs of a description may change a plan, but not here: every rank has the same.
    out, _ = processes.run("plan", "--json", described)
    by_options, _ = processes.run(
        "plan", "--json", "--model", "qwen3-0.6b", "--layers", "2", "--trainers", "fsdp=4",
        "--workers", "tp=2",
    )  # fmt: skip
    assert json.loads(out)["hash"] == json.loads(by_options)["hash"]


# A replica of the trainers and an engine on each of two hosts, each of which is a rack.
RACKS = """\
model: {name: qwen3-0.6b, layers: 2}
relays: never
trainers: {sharding: "fsdp=2,replicas=2", ranks_per_host: 2, nics_per_host: 2}
workers: {sharding: "tp=2,replicas=2", ranks_per_host: 2, nics_per_host: 2}
network: {hosts_per_rack: 1, oversubscription: 8}
"""


def test_what_each_rack_holds_stays_in_racks_that_are_shared(tmp_path):
    separate, shared = tmp_path / "separate.yaml", tmp_path / "shared.yaml"
    separate.write_text(RACKS)
    shared.write_text(RACKS.replace("8}", "8, shared_racks: true}"))
    across, within = predict(str(separate)), predict(str(shared))
    assert all(trainer // 2 == worker // 2 for trainer, worker, *_ in within["pairs"])
    assert any("uplinks" in port["name"] for port in across["ports"])
    assert not any("uplinks" in port["name"] for port in within["ports"])
    assert within["seconds"] < across["seconds"] / 4
    for side in ("trainers", "workers"):
        assert [r["bytes"] for r in within[side]] == [r["bytes"] for r in across[side]]


@pytest.mark.parametrize("case", ["kimi-k2-256-128", "qwen3-235b-128-32"])
def test_the_built_in_cases_come_near_what_the_receiving_nics_allow(case):
    prediction = predict("--case", case)
    assert prediction["seconds"] <= 1.15 * prediction["bounds"]["ingress"]["seconds"]


@pytest.mark.parametrize("relays,growth", [("never", 2), ("auto", 1)])
def test_a_sweep_has_a_point_for_each_doubling(tmp_path, relays, growth):
    path = tmp_path / "cluster.yaml"
    path.write_text(f"relays: {relays}\n{DESCRIPTION}")
    sweep = predict(str(path), "--sweep", "workers=2..9")["sweep"]
    assert [point["ranks"] for point in sweep["points"]] == [2, 4, 8]
    # Each replica gets the same bytes: from the same trainers, or from the other replicas.
    bounds = [point["bound_seconds"] for point in sweep["points"]]
    assert bounds[2] == pytest.approx(growth * bounds[1], rel=0.05)
    for point in sweep["points"]:
        assert point["seconds"] > point["bound_seconds"]


def test_the_table_names_what_a_reader_looks_for(described):
    out, _ = processes.run("simulate", described)
    for words in ("update", "ingress bound", "imbalance", "slowest path: ", "ring ", "ledger "):
        assert words in out


def test_what_cannot_be_is_refused_by_name(described, tmp_path):
    assert "give either a FILE.yaml or --case" in refusal("simulate")
    assert "give either a FILE.yaml or --case" in refusal("simulate", described, "--case", "small")
    assert "cannot read /none.yaml" in refusal("simulate", "/none.yaml")
    assert 'no case "x"; the cases are kimi-k2-256-128' in refusal("simulate", "--case", "x")
    assert 'workers "tp=2" cannot be 3 ranks' in refusal(
        "simulate", described, "--sweep", "workers=3..9"
    )
    assert '"gpus=1..2"; accepted: workers=FIRST..LAST' in refusal(
        "simulate", described, "--sweep", "gpus=1..2"
    )
    wrong = tmp_path / "wrong.yaml"
    for old, new, error in (
        ("fsdp=4", "rows=4", 'wrong.yaml:3: key "trainers.sharding": '),
        ("tp=2", "tp=3", "3"),
        ("qwen3-0.6b", "none", 'model "none" is not one of'),
        ("nics_per_host: 4", "nics_per_host: 3", 'wrong.yaml:5: key "trainers.nics_per_host" is 3'),
        ("model:", "modell:", 'wrong.yaml:1: key "modell" is unknown'),
    ):
        wrong.write_text(DESCRIPTION.replace(old, new, 1))
        for command in ("simulate", "plan"):
            assert error in refusal(command, str(wrong)), (command, new)


def test_a_page_that_cannot_be_written_is_named(described, tmp_path):
    page = tmp_path / "none" / "page.html"
    error = refusal("simulate", described, "--html", str(page))
    assert f"write the page {page}: No such file or directory" in error
