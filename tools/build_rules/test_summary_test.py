# SPDX-License-Identifier: Apache-2.0
"""What each kind of event counts as."""

import json

import pytest

from tools.build_rules.test_summary import Skip, count_round, main

GOOGLETEST = """<testsuites><testsuite name="Box">
<testcase name="Meets" classname="Box" status="run" result="completed"/>
<testcase name="Gpu" classname="Box" status="run" result="skipped">
<skipped message="core/box_test.cc:7&#x0A;no GPU here&#x0A;"/></testcase>
<testcase name="Off" classname="Box" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""

FAILING = """<testsuites><testsuite name="Box">
<testcase name="Cuts" classname="Box" status="run" result="completed">
<failure message="core/box_test.cc:9&#x0A;Expected equality"/></testcase>
</testsuite></testsuites>"""

SOFTROCE = """<testsuites name="SoftRoCE"><testsuite name="a">
<testcase classname="S" name="a"/><testcase classname="S" name="b"/>
<testcase classname="S" name="c"><failure message="no"/></testcase>
<testcase classname="S" name="d"><skipped message="off"/></testcase>
</testsuite></testsuites>"""

PYTEST = """<testsuites><testsuite>
<testcase classname="t" name="a"/>
<testcase classname="t" name="b"><skipped type="pytest.skip" message="because">x</skipped></testcase>
</testsuite></testsuites>"""


PYTEST_FILE = """<testsuites><testsuite>
<testcase classname="" name="t"><skipped type="pytest.skip" message="collection skipped"
>('t.py', 8, "Skipped: could not import 'torch': no torch")</skipped></testcase>
</testsuite></testsuites>"""


def result_event(tmp_path, xml, status="PASSED", label="//core:box_test"):
    path = tmp_path / "a b.xml"
    path.write_text(xml)
    output = {"name": "test.xml", "uri": path.as_uri()}
    result = {"status": status, "testActionOutput": [output]}
    return {"id": {"testResult": {"label": label, "run": 1, "shard": 1}}, "testResult": result}


def target_event(**event):
    return {"id": {"targetCompleted": {"label": "//core:box"}}, **event}


def test_googletest_cases_are_counted(tmp_path):
    total = count_round("default", [result_event(tmp_path, GOOGLETEST)], 0)
    assert (total.passed, total.failed) == (1, [])
    assert total.skipped == [Skip("//core:box_test", "no GPU here", "Box.Gpu")]


def test_pytest_cases_are_counted(tmp_path):
    total = count_round("tsan", [result_event(tmp_path, PYTEST)], 0)
    assert (total.passed, total.failed) == (1, [])
    assert total.skipped == [Skip("//core:box_test [tsan]", "because", "t.b")]


def test_a_file_that_pytest_skipped_has_a_reason(tmp_path):
    total = count_round("default", [result_event(tmp_path, PYTEST_FILE)], 0)
    assert total.skipped == [Skip("//core:box_test", "could not import 'torch': no torch", "")]


def test_a_failed_case_is_named(tmp_path):
    total = count_round("default", [result_event(tmp_path, FAILING, "FAILED")], 3)
    assert total.failed == ["//core:box_test Box.Cuts: Expected equality"]


@pytest.mark.parametrize(("status", "passed", "failed"), [("PASSED", 1, 0), ("TIMEOUT", 0, 1)])
def test_a_test_without_cases_is_one(tmp_path, status, passed, failed):
    total = count_round("default", [result_event(tmp_path, "", status)], 0)
    assert (total.passed, len(total.failed)) == (passed, failed)


def test_a_target_without_suites_goes_by_its_label(tmp_path):
    xml = '<testsuites><testcase name="core/x_test"><error message="exited with error code 1"/>'
    total = count_round("default", [result_event(tmp_path, xml + "</testcase></testsuites>")], 3)
    assert total.failed == ["//core:box_test: exited with error code 1"]


def test_a_crash_after_the_cases_fails(tmp_path):
    total = count_round("default", [result_event(tmp_path, GOOGLETEST, "FAILED")], 3)
    assert total.failed == ["//core:box_test: failed"]


def test_what_does_not_build_fails():
    total = count_round("default", [target_event(completed={})], 1)
    assert total.failed == ["//core:box: failed to build"]


def test_what_is_not_for_this_platform_is_skipped():
    total = count_round("default", [target_event(aborted={"reason": "SKIPPED"})], 0)
    assert (total.failed, len(total.skipped)) == ([], 1)


def test_a_round_without_tests_is_one_case():
    assert count_round("clang", [target_event(completed={"success": True})], 0).passed == 1


def test_a_bad_exit_fails_even_if_no_event_says_so():
    assert count_round("clang", [], 1).failed == ["bazel [clang]: exit status 1"]


def test_nothing_to_test_under_a_sanitizer_is_no_failure():
    total = count_round("tsan", [], 4)
    assert (total.passed, total.failed) == (0, [])


def test_the_total_comes_last(tmp_path, capsys):
    assert main(["default", str(tmp_path / "none"), "0", "clang", str(tmp_path / "none"), "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_what_ran_on_softroce_is_counted_apart(tmp_path, capsys):
    events = tmp_path / "events"
    events.write_text(json.dumps(result_event(tmp_path, SOFTROCE, "FAILED")) + "\n")
    assert main(["default", str(events), "3", "tsan", str(events), "3"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "4 passed, 2 failed, 2 skipped (6 on SoftRoCE)"


def test_each_stack_is_one_test_and_is_named(tmp_path, capsys):
    bazel = ["default", str(tmp_path / "none"), "0"]
    assert main([*bazel, "ray", "stack", "0", "vllm updates moe", "stack", "0"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "3 passed, 0 failed, 0 skipped (stacks: ray, vllm updates moe)"


def test_a_stack_that_fails_is_named_and_fails_the_whole(tmp_path, capsys):
    events = tmp_path / "events"
    events.write_text(json.dumps(result_event(tmp_path, SOFTROCE)) + "\n")
    assert main(["default", str(events), "0", "ray", "stack", "3"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "failed: testing/stacks/run ray: exit status 3",
        "2 passed, 2 failed, 1 skipped (3 on SoftRoCE; stacks: ray)",
    ]


def test_cases_of_one_target_that_were_skipped_for_one_reason_are_one_line(tmp_path, capsys):
    skipped = [
        f'<testcase classname="S" name="{n}"><skipped message="off"/></testcase>' for n in "ab"
    ]
    other = '<testcase classname="S" name="c"><skipped message="late"/></testcase>'
    events = tmp_path / "events"
    xml = f"<testsuites>{''.join(skipped)}{other}</testsuites>"
    events.write_text(json.dumps(result_event(tmp_path, xml)) + "\n")
    main(["default", str(events), "0"])
    assert capsys.readouterr().out.splitlines() == [
        "skipped: //core:box_test S.c: late",
        "skipped: //core:box_test: 2 cases: off",
        "0 passed, 0 failed, 3 skipped",
    ]


def test_softroce_tests_that_were_skipped_did_not_run_there(tmp_path, capsys):
    xml = '<testsuites name="SoftRoCE"><testcase classname="S" name="a"><skipped message="off"/>'
    events = tmp_path / "events"
    events.write_text(json.dumps(result_event(tmp_path, xml + "</testcase></testsuites>")) + "\n")
    main(["default", str(events), "0"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "skipped: //core:box_test S.a: off",
        "0 passed, 0 failed, 1 skipped (0 on SoftRoCE)",
    ]
