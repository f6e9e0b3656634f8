# SPDX-License-Identifier: Apache-2.0
"""What `cargo test` says, as cases."""

import xml.etree.ElementTree as ElementTree

import pytest

from tools.build_rules.cargo_main import count_cases, run_check
from tools.build_rules.case_report import CaseReport


@pytest.fixture
def report():
    return CaseReport("cargo")


def cases(report, path, monkeypatch):
    """[(group, name, outcome)] of the test.xml, and the exit status."""
    monkeypatch.setenv("XML_OUTPUT_FILE", str(path))
    status = report.finish()
    found = [
        (case.get("classname"), case.get("name"), case[0].tag if len(case) else "passed")
        for case in ElementTree.parse(path).getroot()
    ]
    return found, status


def test_each_line_of_a_test_is_a_case_of_its_binary(report, tmp_path, monkeypatch):
    said = """\
   Compiling waybill v0.1.0 (/crate)
     Running unittests src/lib.rs (/target/debug/deps/waybill-0b37f663e9df1434)
test dtype::tests::sizes ... ok
test dtype::tests::names - should panic ... ok
     Running tests/version.rs (/target/debug/deps/version-76853a0d5d897a44)
test of_the_crate ... FAILED
test of_a_gpu ... ignored, no GPU
   Doc-tests waybill
test src/lib.rs - version (line 12) ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""
    count_cases(said.splitlines(keepends=True), report)
    found, status = cases(report, tmp_path / "test.xml", monkeypatch)
    assert found == [
        ("src/lib.rs", "dtype::tests::sizes", "passed"),
        ("src/lib.rs", "dtype::tests::names", "passed"),
        ("tests/version.rs", "of_the_crate", "failure"),
        ("tests/version.rs", "of_a_gpu", "skipped"),
        ("Doc-tests waybill", "src/lib.rs - version (line 12)", "passed"),
    ]
    assert status == 1


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("true", ("cargo", "doc", "passed")),
        ("exit 101", ("cargo", "doc", "failure")),
        ("echo 'test a ... ok'", ("crate", "a", "passed")),
        ("echo 'test a ... FAILED'; exit 101", ("crate", "a", "failure")),
    ],
    ids=["no_cases_are_one", "a_failure_without_cases", "its_cases", "its_failed_case"],
)
def test_a_check_is_its_cases_or_one(report, tmp_path, monkeypatch, script, expected):
    run_check("doc", ["bash", "-c", script], {}, tmp_path, report)
    found, status = cases(report, tmp_path / "test.xml", monkeypatch)
    assert found == [expected]
    assert status == (expected[2] == "failure")
