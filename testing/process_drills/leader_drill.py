# SPDX-License-Identifier: Apache-2.0
"""Kills the leading controller in the middle of an update, again and again, and measures the way back.

    bazel run //testing/process_drills:leader_drill -- --kills 20

Two controllers with an etcd, two trainers and two workers, all processes of the `waybill` program on one
machine. While the trainers publish a version, the leader gets a SIGKILL. The time ends when a version that
was published after that is committed. Then the controller is started again, as a standby. Before the next
kill a version is published without a fault, and every byte that is shown is checked.
"""

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import etcd_server
from drilled_job import (
    ANSWER_SECONDS,
    JOIN_SECONDS,
    PUBLISH_SECONDS,
    Failure,
    Process,
    make_checkpoint,
)

MOST_ATTEMPTS = 4
CONTROLLERS = ("controller 0", "controller 1")
RANKS = ("trainer 0", "trainer 1", "worker 0", "worker 1")


class Job:
    """Two controllers, of which the first leads at the beginning, two trainers and two workers."""

    def __init__(self, folder, etcd, seed):
        self.random = random.Random(seed)
        self.version = 0
        self._state = f"etcd://{etcd}"
        ports = etcd_server.free_ports(2)
        self._addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(CONTROLLERS, ports, strict=True)
        }
        self._checkpoint = folder / "checkpoint"
        self._checkpoint.mkdir()
        make_checkpoint(self._checkpoint)
        self.processes = {}
        for name, event in zip(CONTROLLERS, ("listening", "standby"), strict=True):
            self.start_controller(name)
            self.await_controller(name, event)
        for name in RANKS:
            role, rank = name.split()
            more = ["--timeout", str(PUBLISH_SECONDS)] if role == "trainer" else []
            self.processes[name] = Process(
                name, role, "--driven", "--job", "drill", "--rank", rank, "--world", "2",
                "--controller", ",".join(self._addresses.values()),
                "--checkpoint", str(self._checkpoint), "--fabric", "local", *more,
            )  # fmt: skip
        for name in RANKS:
            told = self.processes[name].wait_for("joined", JOIN_SECONDS)
            if told is None or "error" in told:
                raise Failure(f"{name} cannot join: {told}")

    def start_controller(self, name):
        self.processes[name] = Process(
            name, "controller", "--driven", "--job", "drill", "--listen", self._addresses[name],
            "--state", self._state,
        )  # fmt: skip

    def await_controller(self, name, event):
        """Waits until a controller says "listening" or "standby"."""
        if self.processes[name].wait_for(event, ANSWER_SECONDS) is None:
            raise Failure(f"{name} has ended: {self.processes[name].end()}")

    def begin_publish(self):
        self.version += 1
        for command, answer in (("change", "changed"), ("publish", None)):
            for name in ("trainer 0", "trainer 1"):
                self.processes[name].tell(f"{command} {self.version}")
                if answer:
                    self.processes[name].wait_for(answer, ANSWER_SECONDS)

    def end_publish(self):
        """Returns what went wrong, by the words of each trainer."""
        seconds = 3 * PUBLISH_SECONDS + ANSWER_SECONDS
        told = [self.processes[f"trainer {t}"].wait_for("published", seconds) for t in range(2)]
        if None in told:
            raise Failure("a trainer has ended")
        return [answer["error"] for answer in told if "error" in answer]

    def publish_until_committed(self):
        """Returns how many versions that took."""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            self.begin_publish()
            errors = self.end_publish()
            if not errors:
                return attempt
        raise Failure(f"no version commits in {MOST_ATTEMPTS} attempts: {errors}")

    def check(self):
        """Checks every byte that the workers show."""
        for name in ("worker 0", "worker 1"):
            self.processes[name].tell(f"check {self.version}")
            told = self.processes[name].wait_for("checked", ANSWER_SECONDS)
            if told is None or "error" in told:
                raise Failure(f"torn or wrong: {name}: {told}")

    def close(self):
        for process in self.processes.values():
            process.kill()


def kill_leader(job, leader, standby):
    """Returns the seconds from the kill to the next commit, and until the standby led."""
    job.begin_publish()
    moment = time.monotonic() + 0.03 * job.random.random()  # An update takes about as long.
    while time.monotonic() < moment:
        pass
    job.processes[leader].kill()
    begin = time.monotonic()
    job.await_controller(standby, "listening")
    led = time.monotonic() - begin
    job.end_publish()  # This version may have been committed or not.
    job.publish_until_committed()
    committed = time.monotonic() - begin
    job.start_controller(leader)
    job.await_controller(leader, "standby")
    return committed, led


@contextlib.contextmanager
def job_with_etcd(seed):
    """A job that has published a version, and its etcd."""
    with (
        tempfile.TemporaryDirectory() as folder,
        etcd_server.EtcdServer(Path(folder) / "etcd") as etcd,
    ):
        job = Job(Path(folder), etcd.address, seed)
        try:
            job.publish_until_committed()
            yield job, etcd
        finally:
            job.close()


def drill(kills, seed=1):
    """Returns what kill_leader() does, for each kill. Raises Failure."""
    with job_with_etcd(seed) as (job, _):
        times = []
        leader, standby = CONTROLLERS
        for _ in range(kills):
            times.append(kill_leader(job, leader, standby))
            leader, standby = standby, leader
            job.publish_until_committed()
            job.check()
        return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the moments; 1 by default")
    options = parser.parse_args()
    if not etcd_server.is_installed():
        sys.exit("there is no program etcd; tools/setup installs it")
    times = drill(options.kills, options.seed)
    for what, seconds in zip(("next commit", "next leader"), zip(*times, strict=True), strict=True):
        print(
            f"{what} {statistics.median(seconds):.2f} s after the kill [{min(seconds):.2f}, {max(seconds):.2f}]"
            f" in {len(times)} kills"
        )


if __name__ == "__main__":
    main()
