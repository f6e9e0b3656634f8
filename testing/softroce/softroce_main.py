# SPDX-License-Identifier: Apache-2.0
"""The main program of every softroce_test: boots one guest and runs the test binaries in it.

usage: softroce_main.py [OPTIONS] BINARY...

Everything the binaries print goes to the test's log, and what became of them, as one JUnit report, to
XML_OUTPUT_FILE. Exits with 0 if nothing failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from testing.softroce.test_report import read_result, report, skipped_suite, suite_of

HERE = Path(__file__).parent
GUEST_TIMED_OUT = 124
GUEST_DIED = 125
MARGIN_S = 20  # The report is written before Bazel's patience ends.


def parse(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--nics", type=int, default=1, help="devices of each node")
    parser.add_argument("--deadline", type=int, default=60, help="of each binary, seconds")
    parser.add_argument("--guest", default=str(HERE / "rxe_guest"))
    parser.add_argument("--guest-option", action="append", default=[], help="of rxe_guest run")
    parser.add_argument("--skip", metavar="REASON", help="runs nothing")
    parser.add_argument("binaries", nargs="+")
    return parser.parse_args(arguments)


def device_names(nodes, nics):
    """rxe1,rxe2;rxe3,rxe4 for two nodes with two devices each."""
    return ";".join(
        ",".join(f"rxe{node * nics + nic + 1}" for nic in range(nics)) for node in range(nodes)
    )


def run_guest(options, results):
    """Runs the binaries; returns why one may not have ended."""
    patience_s = int(os.environ.get("TEST_TIMEOUT", "300"))
    writable = [str(results)]
    writable += [
        os.environ[n] for n in ("TEST_UNDECLARED_OUTPUTS_DIR", "COVERAGE_DIR") if os.environ.get(n)
    ]
    command = [
        # Bazel may kill this process and nobody else.
        *("setpriv", "--pdeathsig", "TERM"),
        *(options.guest, "run"),
        *(f"--write={folder}" for folder in writable),
        f"--devices={options.nodes * options.nics}",
        f"--timeout={max(patience_s - MARGIN_S, 5)}",
        *options.guest_option,
        *(HERE / "run_binaries", results, str(options.deadline)),
        *(os.path.abspath(binary) for binary in options.binaries),
    ]
    environment = {**os.environ, "WAYBILL_RXE_NODES": device_names(options.nodes, options.nics)}
    # One stream: what a binary printed stays beside what rxe_guest says of the guest's end.
    guest = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said = ""
    for line in guest.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if line.startswith("rxe_guest:"):
            said = line.removeprefix("rxe_guest:").strip()
    status = guest.wait()
    return said or f"rxe_guest ended with exit status {status}"


def write_report(suites):
    root = report(suites)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    print(
        f"{root.get('tests')} cases: {root.get('failures')} failed, {root.get('skipped')} skipped"
    )
    for suite in suites:
        for case in suite.iter("testcase"):
            failure = case.find("failure")
            if failure is not None:
                print(f"failed: {suite.get('name')} {case.get('name')}: {failure.get('message')}")
    return int(root.get("failures")) != 0


def main(arguments):
    options = parse(arguments)
    if options.skip:
        print(f"skipped: {options.skip}")
        return write_report([skipped_suite(name, options.skip) for name in options.binaries])
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
        results = Path(folder).resolve()
        end = run_guest(options, results)
        return write_report(
            [
                suite_of(name, read_result(results / str(i)), options.deadline, end)
                for i, name in enumerate(options.binaries)
            ]
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
