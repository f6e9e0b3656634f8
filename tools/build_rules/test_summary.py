# SPDX-License-Identifier: Apache-2.0
"""Adds up what rounds of bazel came to; tools/test runs it.

usage: test_summary.py NAME EVENTS STATUS [NAME EVENTS STATUS]...

Each round has a name, the file that --build_event_json_file wrote, and bazel's exit status. EVENTS is
"stack" if the round is a run of testing/stacks, which counts as one test. Test
cases are counted where a test.xml has them (GoogleTest, pytest); any other test is one case, and so
is a round without tests. Prints what was skipped and why, a line for each target and reason, then
what failed; the last line is
"N passed, N failed, N skipped", and in parentheses, if a softroce_test was asked for, "N on SoftRoCE":
how many of the first two ran there; and "stacks: NAME, NAME": which of testing/stacks ran. Exits with 1 if anything failed, or if nothing passed.
"""

import ast
import json
import sys
import xml.etree.ElementTree
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

NO_TESTS_FOUND = 4  # bazel's exit status where nothing is left of a pattern


STACK = "stack"  # In place of the events of a round.
SOFTROCE = "SoftRoCE"  # What testing/softroce calls its reports.


class Skip(NamedTuple):
    label: str
    why: str
    case: str


@dataclass
class Total:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    on_softroce: int | None = None  # None: nobody asked for one.

    def add(self, other):
        if other.on_softroce is not None:
            self.on_softroce = (self.on_softroce or 0) + other.on_softroce
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def reason(element):
    """The first line that says something: GoogleTest puts the place in the source before it."""
    if element.get("message") == "collection skipped":  # A whole file, by pytest: (file, line, why)
        return ast.literal_eval(element.text)[2].removeprefix("Skipped: ")
    text = (element.get("message") or "") + "\n" + (element.text or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if ".cc:" not in line.split(" ")[0]]
    return (said or lines or ["no reason given"])[0]


def case_name(case):
    """Suite.Case; nothing where Bazel itself wrote the test.xml of a whole target."""
    suite = case.get("classname")
    return f"{suite}.{case.get('name')}" if suite else ""


def count_cases(label, test_xml):
    """The Total of a test.xml; None where there is none, or it cannot be read."""
    try:
        root = xml.etree.ElementTree.parse(test_xml).getroot()
    except (OSError, TypeError, xml.etree.ElementTree.ParseError):
        return None
    total = Total()
    for case in root.iter("testcase"):
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        if failure is not None:
            total.failed.append(f"{label} {case_name(case)}".strip() + f": {reason(failure)}")
        elif skipped is not None:
            total.skipped.append(Skip(label, reason(skipped), case_name(case)))
        elif case.get("status") == "notrun":
            continue  # Not asked for: --test_filter, or GoogleTest's DISABLED_.
        else:
            total.passed += 1
    if root.get("name") == SOFTROCE:
        total.on_softroce = total.passed + len(total.failed)
    return total


def test_xml_of(result):
    for output in result.get("testActionOutput", []):
        if output["name"] == "test.xml":
            return Path(unquote(urlparse(output["uri"]).path))
    return None


def count_test(label, result):
    """The Total of one run (or shard) of a test target."""
    status = result["status"]
    total = count_cases(label, test_xml_of(result)) or Total()
    if status in ("PASSED", "FLAKY"):
        if not (total.passed or total.skipped):
            total.passed = 1
    elif not total.failed:
        total.failed.append(f"{label}: {status.lower().replace('_', ' ')}")
    return total


def count_round(name, events, status):
    """The Total of one round of bazel."""
    total = Total()
    suffix = "" if name == "default" else f" [{name}]"
    results = {}
    for event in events:
        what, about = next(iter(event.get("id", {}).items()), ("", {}))
        label = about.get("label", "") + suffix if isinstance(about, dict) else ""
        if what == "testResult":
            # A later attempt takes the place of an earlier one.
            results[label, about.get("run"), about.get("shard")] = event["testResult"]
        elif what == "targetCompleted" and "aborted" in event:
            if event["aborted"].get("reason") == "SKIPPED":
                total.skipped.append(Skip(label, "not for this platform", ""))
            else:
                total.failed.append(f"{label}: not analysed")
        elif what == "targetCompleted" and not event.get("completed", {}).get("success"):
            total.failed.append(f"{label}: failed to build")
    for (label, _, _), result in sorted(results.items(), key=str):
        total.add(count_test(label, result))
    ended_well = status == 0 or (status == NO_TESTS_FOUND and not results)
    if not ended_well and not total.failed:
        total.failed.append(f"bazel{suffix}: exit status {status}")
    if status == 0 and not results:
        total.passed += 1
    return total


def count_stack(name, status):
    """The Total of one run of testing/stacks."""
    if status == 0:
        return Total(passed=1)
    return Total(failed=[f"testing/stacks/run {name}: exit status {status}"])


def read_events(path):
    try:
        with open(path) as lines:
            return [json.loads(line) for line in lines]
    except (OSError, json.JSONDecodeError):
        return []  # bazel ended before it wrote any; its exit status tells.


def describe_skips(skips):
    """A line for each target and reason: with the case where it is one, else with how many."""
    for (label, why), cases in groupby(sorted(skips), key=lambda skip: skip[:2]):
        names = [skip.case for skip in cases]
        yield (
            f"{label} {names[0]}".strip() + f": {why}"
            if len(names) == 1
            else (f"{label}: {len(names)} cases: {why}")
        )


def main(arguments):
    total, stacks = Total(), []
    for name, path, status in zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True):
        if path == STACK:
            total.add(count_stack(name, int(status)))
            stacks.append(name)
        else:
            total.add(count_round(name, read_events(path), int(status)))
    for line in describe_skips(total.skipped):
        print("skipped:", line)
    for line in total.failed:
        print("failed:", line)
    notes = [] if total.on_softroce is None else [f"{total.on_softroce} on SoftRoCE"]
    notes += [f"stacks: {', '.join(stacks)}"] if stacks else []
    counts = f"{total.passed} passed, {len(total.failed)} failed, {len(total.skipped)} skipped"
    print(counts + (f" ({'; '.join(notes)})" if notes else ""))
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
