# SPDX-License-Identifier: Apache-2.0
"""What becomes of each way in which a binary can end; the guest is this machine."""

import os
import select
from pathlib import Path
from xml.etree import ElementTree

import pytest

from testing.softroce.softroce_main import device_names, main

CASES = '<testsuites><testsuite name="S">%s</testsuite></testsuites>'
PASSED = '<testcase classname="S" name="Good"/>'
SKIPPED = '<testcase classname="S" name="Gpu"><skipped message="no GPU"/></testcase>'
FAILED = '<testcase classname="S" name="Bad"><failure message="1 is not 2"/></testcase>'

# Only what stands after the options; and there is no network to heal.
FAKE_GUEST = """shift
while [[ $1 == -* ]]; do echo "option $1"; shift; done
rxe_heal() { echo the network is whole; }
export -f rxe_heal
exec "$@"
"""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in ("TEST_UNDECLARED_OUTPUTS_DIR", "COVERAGE_DIR", "TESTBRIDGE_TEST_ONLY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_TMPDIR", str(tmp_path))
    monkeypatch.setenv("XML_OUTPUT_FILE", str(tmp_path / "report.xml"))


def script(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)
    return str(path)


def writes_xml(cases):
    return f"echo '{CASES % cases}' >$XML_OUTPUT_FILE\n"


@pytest.fixture
def run(tmp_path):
    """Runs scripts as binaries; gives back the exit status and the suites."""

    def run(*texts, guest=FAKE_GUEST, options=()):
        binaries = [script(tmp_path / f"binary{i}", text) for i, text in enumerate(texts)]
        guest = script(tmp_path / "guest", guest)
        failed = main([f"--guest={guest}", "--deadline=30", *options, *binaries])
        root = ElementTree.parse(os.environ["XML_OUTPUT_FILE"]).getroot()
        assert root.get("name") == "SoftRoCE"
        assert [Path(s.get("name")).name for s in root] == [f"binary{i}" for i in range(len(texts))]
        return failed, list(root)

    return run


def outcome(suite):
    """(name, what, message) of each case."""
    found = []
    for case in suite:
        child = next(iter(case), None)
        found.append(
            (case.get("name"), "passed", None)
            if child is None
            else (case.get("name"), child.tag, child.get("message"))
        )
    return found


ENDS = [
    # name, script, cases
    ("passes", writes_xml(PASSED), [("Good", "passed", None)]),
    ("is_no_framework", "echo fine", [("main", "passed", None)]),
    (
        "skips",
        writes_xml(PASSED + SKIPPED),
        [("Good", "passed", None), ("Gpu", "skipped", "no GPU")],
    ),
    ("fails", writes_xml(FAILED) + "exit 1", [("Bad", "failure", "1 is not 2")]),
    ("fails_and_hides_it", writes_xml(FAILED), [("Bad", "failure", "1 is not 2")]),
    ("fails_without_cases", "exit 7", [("main", "failure", "failed with exit status 7")]),
    (
        "fails_after_its_cases",
        writes_xml(PASSED) + "exit 1",
        [("Good", "passed", None), ("main", "failure", "failed with exit status 1")],
    ),
    ("crashes", "kill -SEGV $$", [("main", "failure", "failed with exit status 139 (SIGSEGV)")]),
    (
        "leaves_half_way",
        "touch $TEST_PREMATURE_EXIT_FILE",
        [("main", "failure", "left with exit status 0 in the middle of its tests")],
    ),
    (
        "writes_half_a_report",
        "echo '<testsuites>' >$XML_OUTPUT_FILE; exit 3",
        [("main", "failure", "failed with exit status 3")],
    ),
]


@pytest.mark.parametrize(("text", "cases"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
def test_a_binary_that(run, text, cases):
    failed, [suite] = run(text)
    assert outcome(suite) == cases
    assert failed == any(what == "failure" for _, what, _ in cases)


def test_one_bad_binary_does_not_keep_the_others_from_running(run):
    failed, suites = run("kill -ABRT $$", writes_xml(PASSED), "exit 1", writes_xml(PASSED))
    assert failed
    assert [outcome(s)[0][1] for s in suites] == ["failure", "passed", "failure", "passed"]


def test_the_network_is_healed_between_binaries(run, capfd):
    run("true", "true", "true")
    assert capfd.readouterr().out.count("the network is whole") == 2


def test_a_binary_that_hangs_is_ended(run):
    failed, suites = run("tail -f /dev/null", "true", options=["--deadline=1"])
    assert failed
    assert outcome(suites[0]) == [("main", "failure", "ran out of its 1 s")]
    assert outcome(suites[1]) == [("main", "passed", None)]


def has_ended(pid):
    """Waits until a process has ended, which is some time after SIGKILL was sent; returns False after a minute."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as process:
        return bool(select.select([process], [], [], 60)[0])


def test_what_a_binary_leaves_running_is_ended(run, tmp_path):
    run(f"tail -f /dev/null & echo $! >{tmp_path}/left")
    assert has_ended(int((tmp_path / "left").read_text()))


def test_the_log_says_why(run):
    _, [suite] = run("printf 'first\\nboom \\033[31m<&>\\n'; kill -SEGV $$")
    assert "boom ?[31m<&>" in suite.find("testcase/failure").text


def test_a_guest_that_cannot_start_fails_every_binary(run):
    says = "rxe_guest: nothing to boot from in /none: run tools/setup"
    failed, suites = run("true", "true", guest=f"echo '{says}' >&2; exit 125")
    assert failed
    why = "was not started: nothing to boot from in /none: run tools/setup"
    assert [outcome(s) for s in suites] == [[("main", "failure", why)]] * 2


def test_a_guest_that_dies_fails_what_had_not_ended(run, tmp_path):
    # The second binary takes its guest along.
    kill = f"kill -KILL $(cat {tmp_path}/guest_pid)"
    guest = f"echo $$ >{tmp_path}/guest_pid\n{FAKE_GUEST}"
    failed, suites = run("true", kill, "true", guest=guest)
    assert failed
    ends = [outcome(s)[0][1:] for s in suites]
    assert ends[0] == ("passed", None)
    assert ends[1] == ("failure", "did not end: rxe_guest ended with exit status -9")
    assert ends[2] == ("failure", "was not started: rxe_guest ended with exit status -9")


def test_skipping_runs_nothing_and_says_so(run, tmp_path):
    failed, suites = run(f"touch {tmp_path}/ran", "true", options=["--skip=not today"])
    assert not failed
    assert [outcome(s) for s in suites] == [[("main", "skipped", "not today")]] * 2
    assert not (tmp_path / "ran").exists()


def test_the_guest_gets_its_devices_and_a_folder(run, capfd):
    run(
        "echo nodes: $WAYBILL_RXE_NODES",
        options=["--nodes=2", "--nics=2", "--guest-option=--smp=1"],
    )
    said = capfd.readouterr().out
    assert "option --devices=4" in said
    assert "option --smp=1" in said
    assert "nodes: rxe1,rxe2;rxe3,rxe4" in said


@pytest.mark.parametrize(
    ("nodes", "nics", "names"),
    [(2, 1, "rxe1;rxe2"), (1, 2, "rxe1,rxe2"), (3, 2, "rxe1,rxe2;rxe3,rxe4;rxe5,rxe6")],
)
def test_device_names(nodes, nics, names):
    assert device_names(nodes, nics) == names
