# SPDX-License-Identifier: Apache-2.0
"""The alert rules and the dashboard: Prometheus' own tests, and that documents name what they use."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path("tools/observability")
METRICS = Path("docs/operations/metrics.md").read_text(encoding="utf-8")
RUNBOOK = Path("docs/operations/runbook.md").read_text(encoding="utf-8")
ALERTS = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
DASHBOARD = (FOLDER / "dashboard.json").read_text(encoding="utf-8")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here; tools/setup installs it"
)


def promtool(*arguments):
    done = subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_is_raised_when_it_has_to_be_and_only_then():
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_the_example_for_prometheus_is_valid():
    promtool("check", "config", "prometheus.yml")


def alerts():
    return re.findall(r"- alert: (\w+)", ALERTS)


def test_each_alert_has_a_test_and_a_line_in_the_runbook():
    tests = (FOLDER / "alerts_test.yml").read_text(encoding="utf-8")
    raised = {
        name
        for name, alert in re.findall(r"alertname: (\w+)\n\s+exp_alerts:(.*)", tests)
        if "[]" not in alert
    }
    assert raised == set(alerts())
    for alert in alerts():
        assert f"| `{alert}` |" in RUNBOOK


def metrics_of(text):
    found = re.findall(r"\b(waybill_\w+|process_\w+)", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found} - {"waybill_job"}


@pytest.mark.parametrize("text", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_every_metric_that_is_used_is_in_the_table(text):
    names = metrics_of(text)
    assert len(names) > 5
    for name in names:
        assert f"| `{name}` |" in METRICS


def test_the_panels_of_the_dashboard_do_not_overlap():
    panels = json.loads(DASHBOARD)["panels"]
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
