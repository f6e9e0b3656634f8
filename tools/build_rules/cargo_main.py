# SPDX-License-Identifier: Apache-2.0
"""The main program of every cargo_test: cargo's checks of a crate, offline.

usage: cargo_main.py --cargo FILE --manifest FILE --sdk TARBALL --vendor TAR
       cargo_main.py --skip REASON
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.build_rules.case_report import CaseReport
from tools.build_rules.kept_folder import checksum, copy_anew, kept_folder, unpack_anew

# "     Running tests/version.rs (target/debug/deps/version-0123456789abcdef)", "   Doc-tests waybill"
BINARY = re.compile(r"\s+(?:Running (?:unittests )?(\S+) \(|(Doc-tests \S+))")
CASE = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, (.*))?$")

# What cargo is asked, and the program that it needs beside it, which small installations lack.
CHECKS = [
    ("fmt", ["fmt", "--check"], "rustfmt"),
    ("clippy", ["clippy", "--frozen", "--all-targets", "--", "--deny=warnings"], "clippy-driver"),
    ("test", ["test", "--frozen", "--no-fail-fast"], None),
    ("doc", ["doc", "--frozen", "--no-deps"], "rustdoc"),
]


def count_cases(lines, report):
    """Prints what `cargo test` says while it says it, and reports each case of it."""
    binary = "crate"
    for line in lines:
        print(line, end="", flush=True)
        if found := BINARY.match(line):
            binary = found[1] or found[2]
        elif found := CASE.match(line):
            name, outcome, why = found.groups()
            if outcome == "ok":
                report.passed(binary, name)
            elif outcome == "ignored":
                report.skipped(binary, name, why or "ignored")
            else:
                report.failed(binary, name, "failed; the test's log says how")


def run_check(name, command, environment, crate, report):
    cases, failures = len(report), report.failures
    with subprocess.Popen(
        command,
        cwd=crate,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        count_cases(process.stdout, report)
    if process.returncode != 0 and report.failures == failures:
        report.failed("cargo", name, f"exit status {process.returncode}")
    elif len(report) == cases:
        report.passed("cargo", name)


def unpack_vendor(archive, folder):
    """cargo's fingerprints hold this folder's path: it stays where it is."""
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(archive) as files:
            files.extractall(part)
        part.rename(folder)


def lay_out(kept, crate, sdk, vendor):
    """What cargo builds from."""
    unpack_vendor(vendor, kept / "vendor")
    copy_anew(crate, kept / "crate")
    unpack_anew(sdk, kept / "sdk")


def environment_of(cargo, kept, sdk):
    home = kept / "cargo_home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "vendored"\n'
        f'[source.vendored]\ndirectory = "{kept / "vendor"}"\n'
    )
    return {
        "CARGO_HOME": str(home),
        "CARGO_INCREMENTAL": "0",
        "CARGO_TARGET_DIR": str(kept / "target"),
        "CARGO_TERM_COLOR": "never",
        "HOME": str(home),
        "PATH": f"{cargo.parent}:/usr/bin:/bin",
        "RUSTDOCFLAGS": "--deny=warnings",
        "TMPDIR": os.environ.get("TEST_TMPDIR", "/tmp"),
        "WAYBILL_INCLUDE_DIR": str(sdk / "include"),
        "WAYBILL_LIB_DIR": str(sdk / "lib"),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cargo", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--sdk", type=Path)
    parser.add_argument("--vendor", type=Path)
    parser.add_argument("--skip")
    arguments = parser.parse_args()
    report = CaseReport("cargo")
    if arguments.skip:
        report.skipped("cargo", "test", arguments.skip)
        return report.finish()

    cargo = arguments.cargo.resolve()
    version = subprocess.check_output([cargo, "--version"], text=True)
    with kept_folder(f"cargo-{checksum(version, arguments.vendor)}") as kept:
        lay_out(kept, arguments.manifest.parent, arguments.sdk, arguments.vendor)
        environment = environment_of(cargo, kept, kept / "sdk")
        for name, words, needed in CHECKS:
            if needed and not cargo.with_name(needed).exists():
                report.skipped("cargo", name, f"no {needed} beside {cargo}")
                continue
            print(f"== cargo {name}", flush=True)
            run_check(name, [cargo, *words], environment, kept / "crate", report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
