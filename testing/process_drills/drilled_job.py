# SPDX-License-Identifier: Apache-2.0
"""The job of a drill: a controller, trainers, workers and a replica, as processes of `waybill`."""

import json
import os
import queue
import random
import re
import signal
import struct
import subprocess
import threading
import time
from collections import Counter

import drill_machine
import flipped_receives

WAYBILL = os.path.realpath("tools/waybill/waybill")
NODES = os.environ.get("WAYBILL_RXE_NODES", "")  # Set in the guest of testing/softroce.

# Programs run some twenty times slower in the guest, and its network moves 55 to 120 MiB/s.
PUBLISH_SECONDS = 20 if NODES else 5
ANSWER_SECONDS = 120 if NODES else 30
JOIN_SECONDS = 240 if NODES else 60
ROWS, COLUMNS = (512 if NODES else 4096), 1024  # 1 MiB or 8 MiB in BF16.

TENSOR = "w"
TENSOR_BYTES = ROWS * COLUMNS * 2
PATTERN = bytes(range(64, 96))

PARTS = 2  # Of the tensor, over trainers and over workers.
CONTROLLER, REPLICA = "controller", "replica 0"


class Failure(Exception):
    """What a drill looks for."""


def role_of(name):
    return name.split()[0]


def make_checkpoint(folder, rows=ROWS):
    """Writes one tensor of BF16 numbers."""
    size = rows * COLUMNS * 2
    header = json.dumps(
        {TENSOR: {"dtype": "BF16", "shape": [rows, COLUMNS], "data_offsets": [0, size]}}
    )
    data = struct.pack("<Q", len(header)) + header.encode()
    data += PATTERN * (size // len(PATTERN))
    (folder / "model.safetensors").write_bytes(data)


class Process:
    """A process that takes commands and answers in lines of JSON."""

    def __init__(self, name, *arguments, environment=None):
        self.name = name
        self.shown_version = 0
        self._events = queue.Queue()
        self._told = Counter()  # How often each event came.
        self._errors = []
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", WAYBILL, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "WAYBILL_TOKEN": "the secret of the drill", **(environment or {})},
        )
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self):
        return self._process.pid

    def _read(self):
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "said", "line": line.strip()}
            self._told[event["event"]] += 1
            if event["event"] == "shown":
                self.shown_version = event["version"]
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
        """Returns the next event of that name, or None if the process has ended."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"hang: {self.name} has not said {event!r} by its deadline") from None
            if found is None:
                self._events.put(None)  # For the next call.
                return None
            if found["event"] == event:
                return found

    def goes_on(self, deadline):
        """Waits for any event until the deadline. Returns false if the process has ended."""
        try:
            found = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return True
        if found is None:
            self._events.put(None)  # For the next call.
        return found is not None

    def count(self, event):
        """Returns how often the event has come."""
        return self._told[event]

    def signal(self, number):
        self._process.send_signal(number)

    def ended_within(self, seconds):
        """Waits for the end of the process. Returns false if it goes on."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def has_ended(self):
        return self._process.poll() is not None

    def kill(self):
        self._process.kill()
        self._process.wait()

    def leave(self):
        """Ends the process as its user would."""
        self._process.stdin.close()
        if not self.ended_within(ANSWER_SECONDS):
            raise Failure(f"hang: {self.name} does not leave")

    def end(self):
        """Returns how the process has ended and what it said last."""
        status = self._process.wait(ANSWER_SECONDS)
        for reader in self._readers:
            reader.join(ANSWER_SECONDS)
        return f"exit status {status}: {''.join(self._errors[-5:])}"


class Job:
    """A controller, trainers, two workers and a replica, and the machine that they run on.

    `copies`: how many trainers hold each half of the tensor. `relays`: each worker holds the whole
    tensor, and relays a part of it to the other. `rows`: of the tensor. `metrics`: the controller
    serves them on the port `metrics_port`.
    """

    def __init__(
        self, folder, fabric, digests=True, copies=1, relays=False, rows=ROWS, metrics=False
    ):
        self.folder, self.fabric, self.digests, self.copies = folder, fabric, digests, copies
        self.relays, self.metrics = relays, metrics
        self.ranks = [f"trainer {rank}" for rank in range(PARTS * copies)]
        self.ranks += [f"worker {rank}" for rank in range(PARTS)] + [REPLICA]
        self.random = random.Random(0)
        self.counts = Counter()
        self.processes = {}
        self.version = 0
        self._published = {}  # By trainer, how often it had published before this publish.
        self.address = "127.0.0.1:0"
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir()
        make_checkpoint(self.checkpoint, rows)
        (folder / "disk").mkdir()
        self.disk = drill_machine.SmallFolder(folder / "disk", drill_machine.DISK_BYTES)
        self.shared_memory = drill_machine.SmallFolder(
            drill_machine.SHARED_MEMORY, drill_machine.SHARED_MEMORY_BYTES
        )
        self.start(CONTROLLER)
        for name in self.ranks:
            self.start(name)
        for name in self.ranks:
            self.await_joined(name)

    def close(self):
        for process in self.processes.values():
            process.kill()
        self.shared_memory.close()
        self.disk.close()

    def named(self, *roles):
        return [name for name in self.processes if role_of(name) in roles]

    # --- processes ---

    def start(self, name):
        if name == CONTROLLER:
            self._start_controller()
        else:
            environment = {}
            if self.fabric == "tcp" and role_of(name) != "trainer":
                environment = flipped_receives.environment(self.folder, name)
            self.processes[name] = Process(
                name, *self._rank_arguments(name), environment=environment
            )

    def _start_controller(self):
        controller = self.launch_controller()
        told = controller.wait_for("said", ANSWER_SECONDS)
        if told is None:
            raise Failure(f"the controller does not start: {controller.end()}")
        self.adopt_controller(controller, told)

    def launch_controller(self):
        return Process(
            CONTROLLER, "controller", "--job", "drill", "--listen", self.address,
            "--state", str(self.disk.path / "decisions"), "--require", "all",
            "--relays", "always" if self.relays else "never",
            *(["--metrics", "127.0.0.1:0"] if self.metrics else []),
        )  # fmt: skip

    def adopt_controller(self, controller, told):
        """Takes a controller that has said where it listens as that of the job."""
        self.processes[CONTROLLER] = controller
        self.address = re.search(r" on ([^ ,]+)", told["line"])[1]
        if self.metrics:
            told = controller.wait_for("said", ANSWER_SECONDS)
            self.metrics_port = int(re.search(r"http://[^/]*:(\d+)/", told["line"])[1])

    def _rank_arguments(self, name):
        role, rank = name.split()
        world, node, more = str(PARTS), 0, []
        if role == "trainer":
            world = str(PARTS * self.copies)
            more = ["--timeout", str(PUBLISH_SECONDS)]
            more += ["--sharding", f"fsdp={PARTS},replicas={self.copies}"]
            more += [] if self.digests else ["--no-digests"]
        elif role == "worker":
            node = 1
            more = ["--sharding", f"replicas={PARTS}"] if self.relays else []
        else:
            role, world, node, more = "worker", "1", 2, ["--group", "replica"]
        if NODES:
            device = NODES.split(";")[node]
            more += ["--nics", device, "--host", f"10.9.0.{device.removeprefix('rxe')}"]
        return [
            role, "--driven", "--job", "drill", "--controller", self.address, "--rank", rank,
            "--world", world, "--checkpoint", str(self.checkpoint), "--fabric", self.fabric, *more,
        ]  # fmt: skip

    def await_joined(self, name):
        error = self.join_error(name)
        if error is not None:
            raise Failure(f"{name} cannot join: {error}")

    def join_error(self, name):
        """Waits until the rank has joined. Returns None, or why it has not joined."""
        told = self.processes[name].wait_for("joined", JOIN_SECONDS)
        if told is None:
            return self.processes[name].end()
        return told.get("error")

    def kill(self, name):
        self.count_catch_up(name)
        self.processes.pop(name).kill()

    def leave(self, name):
        self.count_catch_up(name)
        self.processes.pop(name).leave()

    def count_catch_up(self, name=REPLICA):
        """Counts how often a replica that goes, or the drill's end, has caught up."""
        if name == REPLICA and name in self.processes:
            self.counts["the replica caught up"] += self.processes[name].count("caught_up")

    def check_all_run(self):
        for process in self.processes.values():
            if process.has_ended():
                raise Failure(f"{process.name} has ended: {process.end()}")

    def status(self):
        """Returns what the controller says of the job, for whoever reads of a failure."""
        try:
            done = subprocess.run(
                [WAYBILL, "status", "--controller", self.address],
                env={**os.environ, "WAYBILL_TOKEN": "the secret of the drill"},
                capture_output=True,
                text=True,
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "the controller does not answer"
        return done.stdout + done.stderr

    # --- versions ---

    def begin_publish(self):
        """Tells all trainers to publish the next version, when all of them hold it."""
        self.version += 1
        trainers = [self.processes[name] for name in self.named("trainer")]
        self._published = {trainer.name: trainer.count("published") for trainer in trainers}
        for trainer in trainers:
            trainer.tell(f"change {self.version}")
        for trainer in trainers:
            if trainer.wait_for("changed", ANSWER_SECONDS) is None:
                raise Failure(f"{trainer.name} has ended: {trainer.end()}")
        for trainer in trainers:
            trainer.tell(f"publish {self.version}")

    def publish_is_over(self):
        """Returns whether every trainer has told the outcome."""
        return all(
            self.processes[name].count("published") > before
            for name, before in self._published.items()
            if name in self.processes
        )

    def end_publish(self):
        """Waits for the outcome. Returns what went wrong, by the words of each trainer."""
        errors = []
        for name in self.named("trainer"):
            # A publish waits until SENT, then until all groups have shown it.
            seconds = 3 * PUBLISH_SECONDS + ANSWER_SECONDS
            told = self.processes[name].wait_for("published", seconds)
            if told is None:
                raise Failure(f"{name} has ended: {self.processes[name].end()}")
            if "error" in told:
                errors.append(told["error"])
        return errors

    def publish(self):
        self.begin_publish()
        return self.end_publish()

    @staticmethod
    def is_of_replica(error):
        """Returns whether only the replica missed the version, as it may."""
        return error.startswith("group replica")

    def replica_follows(self, seconds):
        """Returns whether the replica is away, or shows the newest version in that time."""
        if REPLICA not in self.processes:
            return True
        replica = self.processes[REPLICA]
        end = time.monotonic() + seconds
        while replica.shown_version < self.version:
            if time.monotonic() > end:
                return False
            if not replica.goes_on(end):
                raise Failure(f"{REPLICA} has ended: {replica.end()}")
        return True

    def checked(self, name, version):
        self.processes[name].tell(f"check {version}")
        told = self.processes[name].wait_for("checked", ANSWER_SECONDS)
        if told is None:
            raise Failure(f"{name} has ended: {self.processes[name].end()}")
        return told

    def check(self):
        """Checks every byte that is shown of the newest version."""
        if not self.replica_follows(ANSWER_SECONDS):
            raise Failure(f"{REPLICA} does not show version {self.version}")
        for name in self.named("worker", "replica"):
            told = self.checked(name, self.version)
            if "error" in told:
                raise Failure(f"torn or wrong: {name}, version {self.version}: {told}")

    def check_whole(self, restarted):
        """Checks that workers which saw a failed update show one version, and show it whole."""
        names = [name for name in self.named("worker") if name not in restarted]
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            shown = {name: self.checked(name, 0)["shown_version"] for name in names}
            if len(set(shown.values())) <= 1:
                break
            # Between the first and the last SHOWN they may differ for a moment.
            if time.monotonic() > end:
                raise Failure(f"mix: {shown}")
        for name, version in shown.items():
            if version == 0:
                continue
            told = self.checked(name, version)
            # A version that was decided late may take its place between the two questions.
            if "error" in told and told["shown_version"] == version:
                raise Failure(f"torn or wrong: {name}, version {version}: {told}")

    # --- faults ---

    def moment(self):
        """Returns at a random moment of an update."""
        self.moment_within(self.random.choice([0, 0.002, 0.01, 0.03, 0.1]))

    def moment_within(self, seconds):
        """Returns after a random time."""
        end = time.monotonic() + seconds * self.random.random()
        while time.monotonic() < end:
            pass

    def stop_for(self, name, seconds):
        """Stops the process; the returned timer lets it go on."""
        self.processes[name].signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, self.processes[name].signal, [signal.SIGCONT])
        timer.start()
        return timer
