"""Kills, stops and restarts the processes of a job at random, and checks that it always recovers.

usage: bazel run //testing/process_drills:random_drill -- [--seconds N] [--seed N] [--fabric F]

A controller, two trainers and two workers, as real processes of the `waybill` program. In each round the
trainers publish a version while one process is killed or stopped. Then what was killed is started again,
what was stopped goes on, and versions are published until one is committed. Nobody else is restarted.

Ends with 1 at the first round in which

  - what a worker shows is not every byte of one version (a torn read),
  - a process does not answer by its deadline (a hang), or
  - no version commits within four attempts after the fault.
"""

import argparse
import json
import os
import queue
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

WAYBILL = os.path.abspath("tools/waybill/waybill")
PUBLISH_SECONDS = 5
MOST_ATTEMPTS = 4
ROWS, COLUMNS = 4096, 1024  # 8 MiB in BF16.


class Failure(Exception):
    """What the drill looks for."""


def make_checkpoint(folder):
    """One tensor of BF16 numbers."""
    size = ROWS * COLUMNS * 2
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [0, size]}}
    )
    data = struct.pack("<Q", len(header)) + header.encode() + bytes(range(64, 96)) * (size // 32)
    (folder / "model.safetensors").write_bytes(data)


class Process:
    """A process that takes commands and answers in lines of JSON."""

    def __init__(self, name, *arguments):
        self.name = name
        self.stopped_until = 0.0
        self._events = queue.Queue()
        self._process = subprocess.Popen(
            [WAYBILL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "WAYBILL_TOKEN": "drill"},
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._errors = []
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self):
        for line in self._process.stderr:
            self._errors.append(line)

    def tell(self, command):
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # It was killed; whoever waits for its answer is told.

    def wait_for(self, event, seconds):
        """The next event of that name; None where the process has ended."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"hang: {self.name} said no {event!r} in {seconds} s") from None
            if found is None or found.get("event") == event:
                return found

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def ended_by_itself(self):
        return self._process.poll() is not None

    def errors(self):
        return "".join(self._errors[-5:])


class Job:
    """A controller, two trainers and two workers."""

    def __init__(self, folder, fabric, random_numbers):
        self.folder, self.fabric, self.random = folder, fabric, random_numbers
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir()
        make_checkpoint(self.checkpoint)
        self.address = "127.0.0.1:0"
        self.processes = {}
        self.version = 0
        self.counts = Counter()
        self.start("controller")
        ranks = ["trainer 0", "trainer 1", "worker 0", "worker 1"]
        for name in ranks:
            self.start(name)
        for name in ranks:
            self.await_joined(name)

    def start(self, name):
        if name == "controller":
            self.processes[name] = Process(
                name, "controller", "--driven", "--job", "drill", "--listen", self.address,
                "--decisions", str(self.folder / "decisions"),
            )  # fmt: skip
            told = self.processes[name].wait_for("listening", 30)
            if told is None:
                raise Failure(f"the controller does not start: {self.processes[name].errors()}")
            self.address = told["address"]
            return
        role, rank = name.split()
        more = ["--timeout", str(PUBLISH_SECONDS)] if role == "trainer" else []
        self.processes[name] = Process(
            name, role, "--driven", "--job", "drill", "--controller", self.address,
            "--rank", rank, "--world", "2", "--checkpoint", str(self.checkpoint),
            "--fabric", self.fabric, *more,
        )  # fmt: skip

    def await_joined(self, name):
        told = self.processes[name].wait_for("joined", 60)
        if told is None or "error" in told:
            raise Failure(f"{name} cannot join: {told} {self.processes[name].errors()}")

    def named(self, role):
        return [name for name in self.processes if name.startswith(role)]

    def begin_publish(self):
        self.version += 1
        for name in self.named("trainer"):
            self.processes[name].tell(f"change {self.version}")
            self.processes[name].tell(f"publish {self.version}")

    def end_publish(self, killed=()):
        """Whether every trainer says that the version is committed."""
        errors = []
        for name in self.named("trainer"):
            if name in killed:
                continue
            # Until SENT, then until all groups have shown it.
            told = self.processes[name].wait_for("published", 3 * PUBLISH_SECONDS + 10)
            if told is None:
                raise Failure(f"{name} has ended: {self.processes[name].errors()}")
            errors += [told["error"]] if "error" in told else []
        return errors

    def strike(self):
        """A fault at a random moment of the update; whom it killed, and whom it stopped."""
        what = self.random.choice(["kill", "kill", "stop", "nothing"])
        name = self.random.choice(list(self.processes))
        moment = (
            time.monotonic()
            + self.random.choice([0, 0.002, 0.01, 0.03, 0.1]) * self.random.random()
        )
        while time.monotonic() < moment:
            pass
        self.counts[f"{what} {name.split()[0]}" if what != "nothing" else what] += 1
        if what == "kill":
            self.processes[name].kill()
            return [name], []
        if what == "stop":
            self.processes[name].signal(signal.SIGSTOP)
            timer = threading.Timer(
                self.random.uniform(0.1, 4), self.processes[name].signal, [signal.SIGCONT]
            )
            timer.start()
            return [], [timer]
        return [], []

    def check(self):
        for name in self.named("worker"):
            self.processes[name].tell(f"check {self.version}")
            told = self.processes[name].wait_for("checked", 30)
            if told is None or "error" in told:
                raise Failure(f"torn or wrong: {name}: {told}")

    def round(self):
        self.begin_publish()
        killed, timers = self.strike()
        if "controller" in killed:
            self.start("controller")
        self.end_publish(killed)
        for timer in timers:
            timer.join()
        for name in killed:
            if name != "controller":
                self.start(name)
        for name in killed:
            if name != "controller":
                self.await_joined(name)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            self.begin_publish()
            errors = self.end_publish()
            if not errors:
                self.counts[f"recovered at attempt {attempt}"] += 1
                break
        else:
            raise Failure(f"no recovery after {MOST_ATTEMPTS} attempts: {errors}")
        self.check()

    def close(self):
        for process in self.processes.values():
            process.kill()


def drill(seconds, seed, fabric):
    """What happened, by count. Raises Failure."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), fabric, random.Random(seed))
        try:
            end = time.monotonic() + seconds
            rounds = 0
            while time.monotonic() < end:
                job.round()
                rounds += 1
                if rounds % 50 == 0:
                    print(f"{fabric}: {rounds} rounds", flush=True)
            return rounds, job.counts
        finally:
            job.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long; 60 by default")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn; 1 by default")
    parser.add_argument("--fabric", default="local", help="local or tcp; local by default")
    options = parser.parse_args()
    try:
        rounds, counts = drill(options.seconds, options.seed, options.fabric)
    except Failure as failure:
        sys.exit(f"seed {options.seed}, {options.fabric}: {failure}")
    print(f"{options.fabric}: {rounds} rounds, no torn read, no hang, each recovered")
    for what, count in sorted(counts.items()):
        print(f"  {what:28} {count}")


if __name__ == "__main__":
    main()
