# SPDX-License-Identifier: Apache-2.0
"""The main program of every go_test: Go's checks of a module, offline.

usage: go_main.py --go FILE --module DIR --sdk TARBALL
       go_main.py --skip REASON
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.build_rules.case_report import CaseReport
from tools.build_rules.kept_folder import checksum, copy_anew, kept_folder, unpack_anew


def count_cases(lines, report):
    """Prints what `go test -json` says while it says it, and reports each case of it."""
    why_skipped = {}
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            print(line, end="", flush=True)  # Compilers do not speak JSON.
            continue
        package, name = event.get("Package", "").rpartition("/")[2], event.get("Test")
        action, text = event.get("Action"), event.get("Output", "")
        print(text, end="", flush=True)
        if action == "output" and not text.startswith(("=== ", "--- ", "    --- ")):
            why_skipped[package, name] = text.partition("go:")[2].partition(": ")[2] or text
        if not name:
            continue
        if action == "pass":
            report.passed(package, name)
        elif action == "fail":
            report.failed(package, name, "failed; the test's log says how")
        elif action == "skip":
            report.skipped(package, name, why_skipped.get((package, name), "skipped").strip())


def run_tests(go, environment, module, report):
    cases, failures = len(report), report.failures
    with subprocess.Popen(
        [go, "test", "-json", "-race", "-count=1", "./..."],
        cwd=module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        count_cases(process.stdout, report)
    if process.returncode != 0 and report.failures == failures:
        report.failed("go", "test", f"exit status {process.returncode}")
    elif len(report) == cases:
        report.passed("go", "test")


def run_check(name, command, environment, module, report):
    """Passes if the command says nothing and ends well."""
    run = subprocess.run(
        command,
        cwd=module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(run.stdout, end="", flush=True)
    if run.returncode != 0 or run.stdout:
        report.failed("go", name, (run.stdout.splitlines() or [f"exit {run.returncode}"])[0])
    else:
        report.passed("go", name)


def lay_out(kept, module, sdk):
    """What Go builds from: the module, and the SDK, whose copy it returns."""
    # Go's cache knows nothing of the SDK's files: their checksum has to be in their path.
    copy = kept / "sdk" / checksum(sdk)
    shutil.rmtree(copy.parent, ignore_errors=True)
    unpack_anew(sdk, copy)
    copy_anew(module, kept / "module")
    return copy


def environment_of(go, kept, sdk):
    return {
        "CC": "/usr/bin/gcc",
        # No debug information, which would name this run's folders. And not by pkg-config: what it
        # says is not among the keys of Go's build cache.
        "CGO_CFLAGS": f"-O2 -g0 -I{sdk}/include",
        "CGO_ENABLED": "1",
        "CGO_LDFLAGS": f"-L{sdk}/lib -Wl,-rpath,{sdk}/lib",
        "CXX": "/usr/bin/g++",
        "GOCACHE": str(kept / "cache"),
        "GOENV": "off",
        "GOFLAGS": "-trimpath -buildvcs=false",
        "GOPATH": str(kept / "path"),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "HOME": str(kept),
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "TMPDIR": os.environ.get("TEST_TMPDIR", "/tmp"),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--go", type=Path)
    parser.add_argument("--module", type=Path)
    parser.add_argument("--sdk", type=Path)
    parser.add_argument("--skip")
    arguments = parser.parse_args()
    report = CaseReport("go")
    if arguments.skip:
        report.skipped("go", "test", arguments.skip)
        return report.finish()

    go = arguments.go
    version = subprocess.check_output([go, "version"], env={"HOME": "/nonexistent"}, text=True)
    with kept_folder(f"go-{checksum(version)}") as kept:
        sdk = lay_out(kept, arguments.module, arguments.sdk)
        environment = environment_of(go, kept, sdk)
        run_check("fmt", [go.with_name("gofmt"), "-d", "."], environment, kept / "module", report)
        # -race, so that both compile the standard library for it, and only once.
        run_check("vet", [go, "vet", "-race", "./..."], environment, kept / "module", report)
        run_tests(go, environment, kept / "module", report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
