# SPDX-License-Identifier: Apache-2.0
"""The `waybill` program as a test runs it: real processes, each with a deadline."""

import json
import os
import signal
import struct
import subprocess
import time

WAYBILL = os.path.abspath("tools/waybill/waybill")
DEADLINE = 120


def run(*arguments, expect=0, limit_file_bytes=None, env=None):
    """Runs it to its end; returns (stdout, stderr). Fails the test on another exit status."""
    done = subprocess.run(
        [WAYBILL, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env={**os.environ, **(env or {})},
        preexec_fn=_limit(limit_file_bytes),
    )
    assert done.returncode == expect, (
        f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout, done.stderr


def _limit(file_bytes):
    if file_bytes is None:
        return None

    def set_limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return set_limit


def demo(*arguments):
    """A demo that has to go well; its report."""
    out, _ = run("demo", "--json", *arguments)
    return json.loads(out)


def small_checkpoint(directory):
    """Writes a checkpoint of one tensor of 512 bytes; returns the folder."""
    data = bytes(range(256)) * 2
    header = json.dumps({"w": {"dtype": "BF16", "shape": [16, 16], "data_offsets": [0, len(data)]}})
    (directory / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header.encode() + data
    )
    return str(directory)


def says_lost(rank, why):
    """Whether an error says that a rank was lost: in mid-update, or before it had begun its part."""
    return f"{rank} is gone" in why or f"it cannot begin without {rank}" in why


def demo_that_fails(*arguments):
    """What it said before, and the one line that says why it ended."""
    out, err = run("demo", *arguments, expect=1)
    lines = [line for line in err.splitlines() if line.startswith("waybill: ")]
    return out, lines[-1]


class Started:
    """A process that goes on; ended with the test at the latest."""

    def __init__(self, *arguments, env=None):
        self.process = subprocess.Popen(
            [WAYBILL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def say(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def first_line(self):
        return self.process.stdout.readline()

    def error_line(self, prefix):
        """What it says on standard error behind `prefix`, when it says so."""
        for line in self.process.stderr:
            if line.startswith(prefix):
                return line[len(prefix) :].strip()
        raise AssertionError(f"it never said {prefix!r}")

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.result()

    def result(self):
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=DEADLINE)


def until(condition, what):
    """Asks again until it holds; the condition itself takes time (it starts a process)."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE} s: {what}"
