# SPDX-License-Identifier: Apache-2.0
"""What steps share: rows of the report, and processes that die with the step."""

import ctypes
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

PROGRAMS = Path(os.environ.get("BUNDLE_PROGRAMS", "."))
SMALL = os.environ.get("BUNDLE_SMALL") == "1"  # A rehearsal without a GPU.
DEADLINE = time.monotonic() + float(os.environ.get("BUNDLE_SECONDS", "60"))
MOST_OUTPUT = 3000

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def seconds_left(most=3600.0):
    """Returns how long the step may still take, or `most` if that is less."""
    return max(0.0, min(most, DEADLINE - time.monotonic()))


def _say(kind, name, text):
    print(json.dumps([kind, name, text]), flush=True)


def passed(check, detail=""):
    _say("passed", check, detail)


def failed(check, output):
    output = output.strip()
    if len(output) > MOST_OUTPUT:
        output = output[: MOST_OUTPUT // 2] + "\n[...]\n" + output[-MOST_OUTPUT // 2 :]
    _say("failed", check, output)


def skipped(check, why):
    _say("skipped", check, why)


def fact(name, value):
    """Something that was found, which is neither right nor wrong."""
    _say("fact", name, value)


def _die_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, **options):
    """Starts a process that is killed when this one ends."""
    return subprocess.Popen(
        list(map(str, command)),
        text=True,
        errors="replace",
        preexec_fn=_die_with_parent,
        **options,
    )


def run(command, seconds, **options):
    """Runs a command. Returns its exit status, None if it took longer, and its output with its errors."""
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        # What it has started itself may still hold the pipe, until the step ends.
        output, _ = process.communicate(timeout=3)
    except subprocess.TimeoutExpired as expired:
        output = (expired.output or b"").decode(errors="replace")
    return None, output


def ended(status, seconds):
    """Says how a process has ended."""
    if status is None:
        return f"it did not end within {seconds:.0f} s"
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it has ended with {status}"


def _tests(program):
    """Returns the tests of a GoogleTest program; those that differ by a parameter are one, with a "*"."""
    status, listed = run([program, "--gtest_list_tests"], 20)
    if status != 0:
        failed(program.name, f"--gtest_list_tests: {ended(status, 20)}\n{listed}")
    tests, suite = [], ""
    for line in listed.splitlines():
        name = line.partition("#")[0].strip()
        if re.match(r"\S+\.$", name) and not line.startswith(" "):
            suite = name
        elif line.startswith("  "):
            tests.append(suite + re.sub(r"/.*", "/*", name))
    return list(dict.fromkeys(tests))


def run_tests(program, most_seconds, leave_out=()):
    """Runs each test of a GoogleTest program in a process of its own: what one leaves behind harms no other."""
    for test in _tests(program):
        if test not in leave_out:
            run_filter(test.removesuffix("/*"), [program], test, most_seconds)


def run_filter(name, command, tests, most_seconds):
    """Adds a row for the tests of a filter, which a command runs."""
    seconds = seconds_left(most_seconds)
    if seconds < 1:
        skipped(name, "no time was left")
        return
    begin = time.monotonic()
    status, output = run([*command, f"--gtest_filter={tests}"], seconds)
    took = time.monotonic() - begin
    count = len(re.findall(r"^\[ +OK \]", output, re.M))
    skips = re.findall(r"^\S*?: Skipped\n(.*)", output, re.M)
    if status != 0:
        last = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)[-1:]
        failed(name, f"{ended(status, seconds)}, {count} passed, in {last}\n{_of_failures(output)}")
    elif skips and count == 0:
        skipped(name, skips[0])
    else:
        passed(name, f"{count} test{'' if count == 1 else 's'}, {took:.1f} s")


def _of_failures(output):
    """Leaves the tests out that have passed."""
    return re.sub(r"^\[ RUN      \] (\S+)\n\[       OK \] \1.*\n", "", output, flags=re.M)
