"""Kills, stops and restarts the processes of a job at random, and checks that it always recovers.

usage: tools/drills [--seconds N | --rounds N] [--seed N] [--fabric F]...

A controller, two trainers, two workers and a replica, which is a group of its own, as real processes of the
`waybill` program. No version goes without the workers. In each round the trainers publish a version while one
process is killed or stopped, or the replica leaves or joins. Then what was killed is started again, what was stopped goes on, and versions are
published until one is committed; the replica may stay away for some rounds. Nobody else is restarted.

Ends with 1 at the first round in which

  - what a worker shows is not every byte of one version (a torn read),
  - a process does not answer by its deadline (a hang),
  - no version commits within four attempts after the fault, or
  - a replica that is there does not show the newest version, by an update or by catching up.
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
        self._told = Counter()  # How often each event came.
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
            event = json.loads(line)
            self._told[event["event"]] += 1
            self._events.put(event)
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

    def take_count(self, event):
        """How often the event came since the last call."""
        return self._told.pop(event, 0)

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def leave(self):
        """Ends the process as its user would."""
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            raise Failure(f"hang: {self.name} does not leave") from None

    def errors(self):
        return "".join(self._errors[-5:])


REPLICA = "replica 0"


class Job:
    """A controller, two trainers, two workers and a replica."""

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
        ranks = ["trainer 0", "trainer 1", "worker 0", "worker 1", REPLICA]
        for name in ranks:
            self.start(name)
        for name in ranks:
            self.await_joined(name)

    def start(self, name):
        if name == "controller":
            self.processes[name] = Process(
                name, "controller", "--driven", "--job", "drill", "--listen", self.address,
                "--state", str(self.folder / "decisions"), "--require", "all",
            )  # fmt: skip
            told = self.processes[name].wait_for("listening", 30)
            if told is None:
                raise Failure(f"the controller does not start: {self.processes[name].errors()}")
            self.address = told["address"]
            return
        role, rank = name.split()
        world, more = "2", []
        if role == "trainer":
            more = ["--timeout", str(PUBLISH_SECONDS)]
        elif role == "replica":
            role, world, more = "worker", "1", ["--group", "replica"]
        self.processes[name] = Process(
            name, role, "--driven", "--job", "drill", "--controller", self.address,
            "--rank", rank, "--world", world, "--checkpoint", str(self.checkpoint),
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
        """What keeps a trainer from saying that the workers have committed the version."""
        errors = []
        for name in self.named("trainer"):
            if name in killed:
                continue
            # Until SENT, then until all groups have shown it.
            told = self.processes[name].wait_for("published", 3 * PUBLISH_SECONDS + 10)
            if told is None:
                raise Failure(f"{name} has ended: {self.processes[name].errors()}")
            # The workers come before the replica, which may miss a version.
            if "error" in told and not told["error"].startswith("group replica"):
                errors.append(told["error"])
        return errors

    def strike(self):
        """A fault at a random moment of the update; whom it killed, and whom it stopped."""
        what = self.random.choice(["kill", "kill", "stop", "nothing", "leave"])
        name = self.random.choice(list(self.processes))
        if what == "leave":
            name = REPLICA
        if REPLICA not in self.processes:
            self.counts["join replica"] += 1
            self.start(REPLICA)  # It joins during the update.
        moment = (
            time.monotonic()
            + self.random.choice([0, 0.002, 0.01, 0.03, 0.1]) * self.random.random()
        )
        while time.monotonic() < moment:
            pass
        self.counts[f"{what} {name.split()[0]}" if what != "nothing" else what] += 1
        if what == "kill" or (what == "leave" and name in self.processes):
            process = self.processes.pop(name) if name == REPLICA else self.processes[name]
            process.kill() if what == "kill" else process.leave()
            return [name], []
        if what == "stop":
            self.processes[name].signal(signal.SIGSTOP)
            timer = threading.Timer(
                self.random.uniform(0.1, 4), self.processes[name].signal, [signal.SIGCONT]
            )
            timer.start()
            return [], [timer]
        return [], []

    def await_replica(self):
        """Waits until the replica shows the newest version."""
        if REPLICA not in self.processes:
            return
        end = time.monotonic() + 30
        replica = self.processes[REPLICA]
        shown = {"version": 0}
        while shown["version"] < self.version:
            shown = replica.wait_for("shown", max(0.0, end - time.monotonic()))
            if shown is None:
                raise Failure(f"{REPLICA} has ended: {replica.errors()}")
        self.counts["caught up"] += replica.take_count("caught_up")

    def check(self):
        self.await_replica()
        for name in self.named("worker") + self.named("replica"):
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
        back = [name for name in killed if name not in ("controller", REPLICA)]
        if REPLICA in killed and self.random.random() < 0.5:
            back.append(REPLICA)
        for name in back:
            self.start(name)
        for name in back:
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


def drill(seed, fabric, seconds=None, rounds=None):
    """Returns how many rounds there were, and what happened, by count. Raises Failure."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), fabric, random.Random(seed))
        try:
            end = time.monotonic() + (seconds or float("inf"))
            done = 0
            while time.monotonic() < end and done != rounds:
                job.round()
                done += 1
                if done % 50 == 0:
                    print(f"{fabric}: {done} rounds", file=sys.stderr, flush=True)
            return done, job.counts
        finally:
            job.close()


def print_table(columns):
    """Prints a row for each kind of thing that happened, and a column for each fabric."""
    rows = [
        "rounds",
        *sorted({what for counts in columns.values() for what in counts} - {"rounds"}),
    ]
    print(f"{'':<28}" + "".join(f"{fabric:>10}" for fabric in columns))
    for row in [*rows, "torn reads", "hangs"]:
        print(f"{row:<28}" + "".join(f"{counts.get(row, 0):>10}" for counts in columns.values()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="how long on each fabric; 60 by default")
    parser.add_argument("--rounds", type=int, help="how many rounds on each fabric")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn; 1 by default")
    parser.add_argument(
        "--fabric", action="append", choices=["local", "tcp"], help="by default local, then tcp"
    )
    options = parser.parse_args()
    seconds = options.seconds or (None if options.rounds else 60)
    columns = {}
    for fabric in options.fabric or ["local", "tcp"]:
        try:
            rounds, counts = drill(options.seed, fabric, seconds, options.rounds)
        except Failure as failure:
            sys.exit(f"seed {options.seed}, {fabric}: {failure}")
        columns[fabric] = counts | {"rounds": rounds}
    print_table(columns)


if __name__ == "__main__":
    main()
