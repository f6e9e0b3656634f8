# SPDX-License-Identifier: Apache-2.0
"""What `go test -json` says, as cases."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from tools.build_rules.case_report import CaseReport
from tools.build_rules.go_main import count_cases, run_check


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Runs a function with a report, and gives [(group, name, outcome, reason)] of the test.xml."""
    monkeypatch.setenv("XML_OUTPUT_FILE", str(tmp_path / "test.xml"))

    def cases_of(fill):
        report = CaseReport("go")
        fill(report)
        report.finish()
        return [
            (
                case.get("classname"),
                case.get("name"),
                *((case[0].tag, case[0].get("message")) if len(case) else ("passed", None)),
            )
            for case in ElementTree.parse(tmp_path / "test.xml").getroot()
        ]

    return cases_of


def event(action, test=None, output=None):
    fields = {"Action": action, "Package": "example.com/waybill", "Test": test, "Output": output}
    return json.dumps({name: value for name, value in fields.items() if value}) + "\n"


def test_each_test_and_subtest_is_a_case(cases):
    said = [
        event("start"),
        event("run", "TestPlan"),
        event("output", "TestPlan", "=== RUN   TestPlan\n"),
        event("pass", "TestPlan/empty"),
        event("pass", "TestPlan"),
        event("fail", "TestVersion"),
        event("output", "TestGpu", "=== RUN   TestGpu\n"),
        event("output", "TestGpu", "    waybill_test.go:7: no GPU: none is here\n"),
        event("output", "TestGpu", "--- SKIP: TestGpu (0.00s)\n"),
        event("skip", "TestGpu"),
        event("fail"),
    ]
    assert cases(lambda report: count_cases(said, report)) == [
        ("waybill", "TestPlan/empty", "passed", None),
        ("waybill", "TestPlan", "passed", None),
        ("waybill", "TestVersion", "failure", "failed; the test's log says how"),
        ("waybill", "TestGpu", "skipped", "no GPU: none is here"),
    ]


def test_what_is_no_json_is_shown(cases, capsys):
    assert cases(lambda report: count_cases(["ld: cannot find -lwaybill\n"], report)) == []
    assert capsys.readouterr().out == "ld: cannot find -lwaybill\n"


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("true", "passed", None),
        ("echo diff waybill.go", "failure", "diff waybill.go"),
        ("exit 2", "failure", "exit 2"),
    ],
    ids=["silent", "has_something_to_say", "fails_silently"],
)
def test_a_check_passes_in_silence(cases, tmp_path, script, outcome, reason):
    check = cases(lambda report: run_check("vet", ["bash", "-c", script], {}, tmp_path, report))
    assert check == [("go", "vet", outcome, reason)]
