# SPDX-License-Identifier: Apache-2.0
"""The same program over other networks, and what `doctor` says and measures."""

import json
import shutil
import subprocess

import processes
import pytest


def test_over_tcp_every_element_is_right_and_every_lane_says_so():
    report = processes.demo(
        "--fabric", "tcp", "--layers", "1", "--versions", "2", "--trainers", "3", "--workers", "2"
    )
    lanes = [lane for trainer in report["trainers"] for lane in trainer["lanes"]]
    assert len(lanes) >= 6
    assert all(lane.startswith("tcp: ") for lane in lanes)
    assert report["elements_checked"] > 0


@pytest.mark.parametrize("mode", ["shadow-copy", "in-place"])
def test_over_tcp_in_every_mode(mode):
    report = processes.demo("--fabric", "tcp", "--layers", "1", "--versions", "2", "--mode", mode)
    assert report["elements_checked"] > 0


def test_a_fabric_that_is_not_there_says_so_and_what_to_do():
    _, line = processes.demo_that_fails("--fabric", "verbs", "--layers", "1")
    assert "RDMA is not available" in line


def test_without_rdma_the_best_of_the_rest_is_used_and_the_reason_told():
    report = processes.demo("--layers", "1", "--versions", "1")
    lanes = [lane for trainer in report["trainers"] for lane in trainer["lanes"]]
    assert all(lane.startswith("local: ") for lane in lanes)
    assert all("RDMA is not available" in lane for lane in lanes)


NAMESPACES = """
mount -t tmpfs tmpfs /run
ip link set lo up
for side in trainers workers; do ip netns add $side; ip -n $side link set lo up; done
ip link add left netns trainers type veth peer name right netns workers
ip -n trainers addr add 10.77.0.1/24 dev left; ip -n trainers link set left up
ip -n workers addr add 10.77.0.2/24 dev right; ip -n workers link set right up
exec "$@"
"""


def test_between_two_network_namespaces_only_tcp_reaches():
    if shutil.which("ip") is None:
        pytest.skip("no iproute2 here")
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no user namespaces here")
    arguments = [
        processes.WAYBILL, "demo", "--json", "--layers", "1", "--versions", "2",
        "--listen", "10.77.0.1", "--wrap-trainers", "ip netns exec trainers",
        "--wrap-workers", "ip netns exec workers",
    ]  # fmt: skip
    done = subprocess.run(
        [*unshare, "bash", "-ec", NAMESPACES, "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=processes.DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lanes = [lane for trainer in json.loads(done.stdout)["trainers"] for lane in trainer["lanes"]]
    assert all(lane.startswith("tcp: 10.77.0.1:") for lane in lanes)
    assert all("not local: " in lane for lane in lanes)


def test_doctor_has_something_to_say_of_everything():
    out, _ = processes.run("doctor", "--json")
    findings = {finding["subject"]: finding for finding in json.loads(out)}
    assert "NUMA" in findings and "open files (RLIMIT_NOFILE)" in findings
    assert {finding["level"] for finding in findings.values()} <= {"good", "note", "bad"}
    for finding in findings.values():
        assert finding["found"]
        assert finding["level"] == "good" or finding["remedy"]


def test_doctor_measures_each_fabric_that_reaches_the_peer():
    with processes.Started("doctor", "--serve", "--listen", "127.0.0.1:0") as server:
        port = server.error_line("serving on ").split(";")[0].rsplit(":", 1)[1]
        out, _ = processes.run(
            "doctor", "--peer", f"127.0.0.1:{port}", "--seconds", "0.01", "--json"
        )
    curves = {curve["fabric"]: curve for curve in json.loads(out)}
    for fabric in ("local", "tcp"):
        points = curves[fabric]["points"]
        assert [point["write_bytes"] for point in points] == [64 * 4**i for i in range(9)]
        assert all(point["latency_seconds"] > 0 for point in points)
        assert all(point["bytes_per_second"] > 0 for point in points)
    assert "RDMA is not available" in curves["verbs"]["error"]


def test_doctor_without_anybody_there_says_how_to_get_somebody():
    _, err = processes.run("doctor", "--peer", "127.0.0.1:1", expect=1)
    assert "start `waybill doctor --serve` there" in err
