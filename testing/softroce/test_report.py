# SPDX-License-Identifier: Apache-2.0
"""Makes one JUnit report of what run_binaries left behind: a test suite for each binary."""

import copy
import signal
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ENVIRONMENT = "SoftRoCE"  # The name of the report: test_summary.py counts by it.
LOG_TAIL_LINES = 40


@dataclass
class Result:
    """What one binary left behind; a status of None: it has not ended."""

    status: int | None
    seconds: float
    log: str
    cases: list | None  # <testcase>s; None without a test.xml that can be read.
    unfinished: bool  # GoogleTest did not get to its end.


def _read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_result(folder):
    """The Result in RESULTS/i; None where the binary was not started."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    try:
        cases = list(ElementTree.parse(folder / "test.xml").getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = None
    status = _read(folder / "status").strip()
    return Result(
        status=int(status) if status else None,
        seconds=float(_read(folder / "seconds").strip() or 0),
        log=_read(folder / "log"),
        cases=cases,
        unfinished=(folder / "unfinished").exists(),
    )


def _status_text(status):
    if status > 128:
        try:
            return f"exit status {status} ({signal.Signals(status - 128).name})"
        except ValueError:
            pass
    return f"exit status {status}"


def _bad_end(result, deadline_s, guest_end):
    """Why the binary as a whole has failed; nothing if it has not."""
    if result is None:
        return f"was not started: {guest_end}"
    if result.status is None:
        return f"did not end: {guest_end}"
    if result.status in (124, 137) and result.seconds >= deadline_s:
        return f"ran out of its {deadline_s} s"
    failed = any(
        c.find("failure") is not None or c.find("error") is not None for c in result.cases or []
    )
    if result.status != 0 and not failed:
        return f"failed with {_status_text(result.status)}"
    if result.status == 0 and result.unfinished:
        return "left with exit status 0 in the middle of its tests"
    return None


def _add_case(suite, name, seconds=0.0):
    return ElementTree.SubElement(
        suite, "testcase", classname=suite.get("name"), name=name, time=f"{seconds:.3f}"
    )


def _suite(name):
    return ElementTree.Element("testsuite", name=name)


def _tail(log):
    lines = log.rstrip().splitlines()[-LOG_TAIL_LINES:]
    # What XML cannot hold, such as the escapes of colours.
    return "\n".join("".join(c if c.isprintable() or c == "\t" else "?" for c in x) for x in lines)


def suite_of(name, result, deadline_s, guest_end):
    """The <testsuite> of one binary.

    Args:
      name: the binary's.
      result: a Result, or None where it was not started.
      deadline_s: how long it had.
      guest_end: why a binary may not have ended.
    """
    suite = _suite(name)
    for case in (result.cases or []) if result else []:
        suite.append(copy.deepcopy(case))
    bad_end = _bad_end(result, deadline_s, guest_end)
    if bad_end:
        case = _add_case(suite, "main", result.seconds if result else 0.0)
        ElementTree.SubElement(case, "failure", message=bad_end).text = _tail(
            result.log if result else ""
        )
    elif result.cases is None:
        _add_case(suite, "main", result.seconds)  # A test of its own, not of a framework.
    if result:
        suite.set("time", f"{result.seconds:.3f}")
    return suite


def skipped_suite(name, reason):
    suite = _suite(name)
    ElementTree.SubElement(_add_case(suite, "main"), "skipped", message=reason)
    return suite


def _count(suite, *kinds):
    return sum(any(c.find(k) is not None for k in kinds) for c in suite.iter("testcase"))


def report(suites):
    """The whole: <testsuites name="SoftRoCE">."""
    root = ElementTree.Element("testsuites", name=ENVIRONMENT)
    root.extend(suites)
    for element in [*suites, root]:
        element.set("tests", str(len(list(element.iter("testcase")))))
        element.set("failures", str(_count(element, "failure", "error")))
        element.set("skipped", str(_count(element, "skipped")))
    return root
