# SPDX-License-Identifier: Apache-2.0
"""The kernels against the host's, bit for bit, and smaller ones again under compute-sanitizer."""

import shutil
from pathlib import Path

import checks

LARGE = "LargeMemory.DigestAndCopyOf5GiB"
# Under a sanitizer, kernels are ten times as slow and more.
SANITIZED = "*-LargeMemory*:*ManyLeaves*:*EveryLength*:*EveryPattern*:*.Casts"


def find_sanitizer():
    found = shutil.which("compute-sanitizer")
    places = ["/usr/local/cuda/bin/compute-sanitizer", "/opt/cuda/bin/compute-sanitizer"]
    return found or next((place for place in places if Path(place).exists()), None)


def main():
    tests = checks.PROGRAMS / "gpu_tests"
    checks.run_tests(tests, most_seconds=25, leave_out=[LARGE] if checks.SMALL else [])
    sanitizer = find_sanitizer()
    if sanitizer is None:
        checks.skipped("compute-sanitizer", "there is no compute-sanitizer on this machine")
        return
    for tool in ("memcheck", "racecheck"):
        command = [sanitizer, f"--tool={tool}", "--error-exitcode=86", tests]
        checks.run_filter(f"compute-sanitizer, {tool}", command, SANITIZED, most_seconds=25)


main()
