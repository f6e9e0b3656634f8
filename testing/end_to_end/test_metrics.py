# SPDX-License-Identifier: Apache-2.0
"""The metrics of a real job, as `promtool` and a real Prometheus read them."""

import http.client
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import etcd_server
import processes
import pytest

ENV = {"WAYBILL_TOKEN": "a secret of the test"}
DOCUMENT = Path("docs/operations/metrics.md")
ALERTS = Path("tools/observability/alerts.yml")

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no Prometheus here; tools/setup installs it",
)


def get(url):
    with urllib.request.urlopen(url, timeout=processes.DEADLINE) as answer:
        return answer.read().decode()


def read(url, series):
    """The value of a series with its labels, or None if there is none."""
    found = re.search(rf"^{re.escape(series)} (.+)$", get(url), re.M)
    return float(found[1]) if found else None


class Job:
    """A controller that serves metrics."""

    def __init__(self, folder, *more):
        self.checkpoint = processes.small_checkpoint(folder)
        self.controller = processes.Started(
            "controller", "--listen", "127.0.0.1:0", "--job", "j", "--state", str(folder / "decisions"),
            "--metrics", "127.0.0.1:0", "--metrics-by-rank", *more,
            env=ENV,
        )  # fmt: skip
        self.address = self.controller.first_line().split(" on ")[1].split(",")[0]
        self.url = self.controller.first_line().split("metrics on ")[1].strip()

    def arguments(self, role, *more):
        common = ["--job", "j", "--controller", self.address, "--checkpoint", self.checkpoint]
        return [role, *common, "--rank", "0", "--world", "1", "--fabric", "tcp", *more]

    def publish(self, version):
        processes.run(*self.arguments("trainer", "--version", str(version)), env=ENV)

    def value(self, series):
        return read(self.url, series)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job that has published version 7 to the group "g"."""
    made = Job(tmp_path_factory.mktemp("job"))
    with made.controller:
        with processes.Started(*made.arguments("worker", "--group", "g"), env=ENV):
            made.publish(7)
            yield made


def test_a_version_is_counted_and_measured(job):
    assert job.value('waybill_group_version{group="g"}') == 7
    assert job.value('waybill_group_versions_behind{group="g"}') == 0
    assert job.value('waybill_updates_total{outcome="committed"}') == 1
    for stage in ("wait", "prepare", "transfer", "decide", "show", "total"):
        assert job.value(f'waybill_update_duration_seconds_count{{stage="{stage}"}}') == 1
    assert job.value("waybill_engine_stop_seconds_count") == 1
    assert job.value("waybill_controller_leads") == 1
    # Of the worker; the trainer has left, perhaps before anybody asked.
    assert job.value('waybill_weight_bytes_total{direction="verified"}') >= 512
    assert job.value('waybill_bytes_total{direction="received",fabric="tcp"}') >= 512
    assert job.value('waybill_rank_shown_version{group="g",rank="0",role="worker"}') == 7


def test_the_document_has_every_metric(job):
    served = set(re.findall(r"^# TYPE (\w+)", get(job.url), re.M))
    served = {name for name in served if not name.startswith("exposer_")}
    written = set(re.findall(r"^\| `((?:waybill|process)_\w+)` \|", DOCUMENT.read_text(), re.M))
    assert served == written


@needs_prometheus
def test_promtool_has_no_objection(job):
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=get(job.url),
        capture_output=True,
        text=True,
        check=False,
    )
    objections = [line for line in done.stderr.splitlines() if not line.startswith("exposer_")]
    assert objections == [] and done.stdout == ""


@needs_prometheus
def test_a_real_prometheus_scrapes_it(job, tmp_path):
    (port,) = etcd_server.free_ports(1)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{ALERTS.resolve()}"]
scrape_configs:
  - job_name: j
    static_configs: [{{targets: ["{urllib.parse.urlsplit(job.url).netloc}"]}}]
"""
    )
    address = f"http://127.0.0.1:{port}/api/v1"
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    log = (tmp_path / "log").open("w")
    with subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:

            def ask(query):
                try:
                    answer = json.loads(
                        get(f"{address}/query?{urllib.parse.urlencode({'query': query})}")
                    )
                except OSError:  # It does not listen yet.
                    assert server.poll() is None, (tmp_path / "log").read_text()
                    return []
                return [result["value"][1] for result in answer["data"]["result"]]

            processes.until(
                lambda: ask('waybill_group_version{group="g", job="j"}') == ["7"],
                "Prometheus has the group's version",
            )
            assert ask('up{job="j"}') == ["1"]
            quantile = (
                'histogram_quantile(0.9, waybill_update_duration_seconds_bucket{stage="total"})'
            )
            assert float(ask(quantile)[0]) > 0

            def rules():
                (group,) = json.loads(get(f"{address}/rules"))["data"]["groups"]
                return {rule["name"]: rule["health"] for rule in group["rules"]}

            processes.until(lambda: set(rules().values()) == {"ok"}, "every rule is evaluated")
        finally:
            server.kill()


def test_the_log_has_a_line_for_each_update_and_each_rank_that_comes_or_goes(tmp_path):
    job = Job(tmp_path, "--log", "json")
    with job.controller:
        with processes.Started(*job.arguments("worker", "--group", "a"), env=ENV):
            job.publish(7)
            processes.until(
                lambda: job.value('waybill_group_version{group="a"}') == 7, "the group shows it"
            )
        processes.until(
            lambda: job.value('waybill_ranks{role="worker",state="connected"}') is None, "it left"
        )
        _, _, err = job.controller.end()
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["job"] for line in lines} == {"j"}
    said = [(line["event"], line.get("rank")) for line in lines if line["event"] != "update"]
    assert sorted(said) == [
        ("gone", "trainer 0"), ("gone", "worker 0"),
        ("joined", "trainer 0"), ("joined", "worker 0"),
    ]  # fmt: skip
    (update,) = (line for line in lines if line["event"] == "update")
    assert (update["group"], update["version"], update["outcome"]) == ("a", 7, "committed")
    parts = ["wait", "prepare", "transfer", "decide", "show"]
    assert update["seconds"] == pytest.approx(sum(update[part] for part in parts), abs=1e-5)


def test_an_address_that_is_taken_is_named(job, tmp_path):
    taken = urllib.parse.urlsplit(job.url).netloc
    _, err = processes.run(
        "controller", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "decisions"),
        "--metrics", taken, expect=1, env=ENV,
    )  # fmt: skip
    assert f"serve metrics on {taken}: listen on {taken}: Address already in use" in err
    assert "give --metrics another address or port" in err


@pytest.mark.parametrize("address", ["9464", "nowhere"])
def test_what_is_no_address_is_named(tmp_path, address):
    _, err = processes.run(
        "controller", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "decisions"),
        "--metrics", address, expect=1, env=ENV,
    )  # fmt: skip
    assert f'--metrics: "{address}" is not HOST:PORT' in err


@pytest.mark.skipif(not etcd_server.is_installed(), reason="no etcd here; tools/setup installs it")
def test_a_standby_has_no_metrics_of_the_job_until_it_leads(tmp_path):
    ports = etcd_server.free_ports(2)
    with etcd_server.EtcdServer(tmp_path / "etcd") as etcd:

        def controller(port):
            return processes.Started(
                "controller", "--listen", f"127.0.0.1:{port}", "--job", "j",
                "--state", f"etcd://{etcd.address}", "--metrics", "127.0.0.1:0", env=ENV,
            )  # fmt: skip

        def url_of(one):
            return one.first_line().split("metrics on ")[1].strip()

        with controller(ports[0]) as first:
            first_url = url_of(first)
            processes.until(lambda: read(first_url, "waybill_controller_leads") == 1, "it leads")
            with controller(ports[1]) as second:
                second_url = url_of(second)
                assert read(second_url, "waybill_controller_leads") == 0
                assert read(second_url, "waybill_published_version") is None
                assert read(first_url, "waybill_published_version") == 0
                first.end()
                processes.until(
                    lambda: read(second_url, "waybill_published_version") == 0, "the other leads"
                )
                assert read(second_url, "waybill_controller_leads") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?x=1", 200),
        ("GET", "/decisions", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/metrics/x", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/", 405),
        ("DELETE", "/status.json", 405),
    ],
)
def test_it_serves_nothing_else(job, method, path, status):
    address = urllib.parse.urlsplit(job.url).netloc
    connection = http.client.HTTPConnection(address, timeout=processes.DEADLINE)
    connection.request(method, path)
    assert connection.getresponse().status == status
