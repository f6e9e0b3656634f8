# SPDX-License-Identifier: Apache-2.0
"""Hurts the processes of a job and the machine below them at random, and checks that the job recovers.

usage: tools/drills [--seconds N | --rounds N | --each] [--seed N] [--fabric F]... [--json]

A job of real processes of the `waybill` program: a controller, two trainers, two workers and a replica,
which is a group of its own. No version goes without the workers. In each round the trainers publish a
version, and meanwhile one thing happens, drawn by the seed:

  kill         a process of any role is killed, and started again
  joining      a rank is killed, and some more times while it joins again
  stop         a process of any role is stopped for 0.1 to 4 s
  leave        the replica leaves, or joins if it is away
  disk         the disk of the controller's decisions is full, during the update or when the controller
               restarts, or takes no byte more, so that the next decision cannot be recorded
  descriptors  a process of any role gets no descriptor beyond those that it has, for two updates or
               until a rank that was killed meanwhile is joining again
  shm          a rank starts, or a worker renews its buffer, and gets no shared memory; /dev/shm is full
  flip         a bit of what has arrived at a worker is flipped before the worker digests it
  nothing      nothing

Then what is missing is started and what was taken is given back, and versions are published until one
is committed. The replica may stay away for some rounds; nobody else is restarted. A drill ends with
status 1 at the first round in which

  - workers of one group show different versions (a mix),
  - what a worker shows is not every byte of one version (a torn read, or an undetected flip),
  - a process does not answer by its deadline (a hang), or ends without a reason,
  - an error does not name what was missing,
  - no version commits within four attempts after the fault, or
  - a replica that is there does not show the newest version, by an update or by catching up. After a
    shortage it may take another publish, which is counted.

It then names the round, from which on the same is drawn again (--from). Timing is not part of the
seed, so that a failure may need several tries.

Full disks, a full /dev/shm and limits are those of a mount namespace and of processes of the drill's own;
that takes root or user namespaces. Over verbs the drill runs in the virtual machine of testing/softroce,
with a smaller tensor.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import drill_machine
from drilled_job import CONTROLLER, NODES, REPLICA, WAYBILL, Failure, Job
from faults import FAULTS

MOST_ATTEMPTS = 4
PATIENCE_SECONDS = 60 if NODES else 10
DEFAULT_SECONDS = 60
# Kills and stops hit every role, so they are drawn more often.
WEIGHTS = {
    "kill": 4,
    "joining": 2,
    "stop": 2,
    "leave": 2,
    "nothing": 1,
    "disk": 2,
    "descriptors": 3,
    "shm": 2,
    "flip": 4,
}

GUEST = os.path.realpath("testing/softroce/rxe_guest")
GUEST_NODES = "rxe1;rxe2;rxe3"  # Of the trainers, the workers and the replica.
GUEST_BOOT_SECONDS = 300
GUEST_ROUND_SECONDS = 60


def round_of(job, fault):
    """Publishes a version under the fault, then versions until one commits. Raises Failure."""
    job.begin_publish()
    after = FAULTS[fault](job)
    for name in after.joining:
        why = job.join_error(name)
        if why is None:
            continue
        if not after.shortage:
            raise Failure(f"{name} cannot join: {why}")
        job.counts["a rank was refused during a shortage"] += 1
        job.kill(name)
        job.start(name)
        job.await_joined(name)
    job.check_all_run()
    job.check_whole(after.restarted)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        errors = [error for error in job.publish() if not job.is_of_replica(error)]
        # A group that has failed to catch up three times waits for the next publish.
        if not errors and after.shortage and not job.replica_follows(PATIENCE_SECONDS):
            job.counts["the replica waited for another publish"] += 1
            errors = [f"{REPLICA} does not show version {job.version}"]
        if not errors:
            job.counts[f"recovered at attempt {attempt}"] += 1
            break
    else:
        raise Failure(f"no recovery after {MOST_ATTEMPTS} attempts: {errors}")
    job.check_all_run()
    job.check()


def drill(options, fabric, faults, seconds, rounds):
    """Returns how many rounds there were, and what happened, by count. Raises Failure."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            Path(folder),
            fabric,
            digests=not options.no_digests,
            copies=options.copies,
            relays=options.relays,
        )
        try:
            end = time.monotonic() + (seconds or float("inf"))
            number = options.first
            while time.monotonic() < end and (rounds is None or number < options.first + rounds):
                # What a round draws depends on nothing that happened before it.
                job.random = random.Random(f"{options.seed}/{number}")
                fault = job.random.choices(faults, [WEIGHTS[fault] for fault in faults])[0]
                if options.each:
                    fault = faults[(number - options.first) % len(faults)]
                try:
                    round_of(job, fault)
                except Failure as failure:
                    raise Failure(
                        f"tools/drills --fabric {fabric} --seed {options.seed} --from {number}: "
                        f"{fault}: {failure}\n{dict(job.counts)}\n{job.status()}"
                    ) from None
                if number % 50 == 0:
                    print(f"{fabric}: round {number}", file=sys.stderr, flush=True)
                number += 1
            job.count_catch_up()
            return number - options.first, job.counts
        finally:
            job.close()


def drill_in_guest(options, seconds, rounds):
    """Runs this program in the guest. Returns what it prints with --json."""
    timeout = GUEST_BOOT_SECONDS + (rounds or 0) * GUEST_ROUND_SECONDS + int(seconds or 0) * 2
    command = [GUEST, "run", f"--devices={GUEST_NODES.count(';') + 1}", f"--timeout={timeout}"]
    command += ["python3", os.path.realpath(__file__), "--json", "--fabric", "verbs"]
    command += ["--seed", str(options.seed), "--from", str(options.first)]
    command += ["--seconds", str(seconds)] if seconds else []
    command += ["--rounds", str(rounds)] if rounds else []
    command += ["--each"] if options.each else []
    command += ["--no-digests"] if options.no_digests else []
    command += ["--copies", str(options.copies)]
    command += ["--relays"] if options.relays else []
    for fault in options.faults or []:
        command += ["--fault", fault]
    report = None
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", *command],
        env={**os.environ, "WAYBILL_RXE_NODES": GUEST_NODES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as guest:
        for line in guest.stdout:
            if line.startswith('{"seed"'):
                report = json.loads(line)
            elif report is None:
                print(line, end="", file=sys.stderr, flush=True)
    if report is None:
        sys.exit(f"the guest ended with status {guest.returncode} and without a report")
    return report


def drills(options):
    """Returns the report of all fabrics that were asked for."""
    report = {"seed": options.seed, "fabrics": {}, "failure": None}
    faults = options.faults or list(FAULTS)
    seconds, rounds = options.seconds, options.rounds
    if seconds is None and rounds is None:
        seconds, rounds = (None, len(faults)) if options.each else (DEFAULT_SECONDS, None)
    for fabric in options.fabric or ["local", "tcp"]:
        if fabric == "verbs" and not NODES:
            found = drill_in_guest(options, seconds, rounds)
            report["fabrics"] |= found["fabrics"]
            report["failure"] = found["failure"]
        else:
            begin = time.monotonic()
            try:
                done, counts = drill(options, fabric, faults, seconds, rounds)
                report["fabrics"][fabric] = {
                    "rounds": done,
                    "seconds": round(time.monotonic() - begin, 1),
                    "counts": dict(sorted(counts.items())),
                }
            except Failure as failure:
                report["failure"] = str(failure)
        if report["failure"]:
            break
    return report


ROLES = [CONTROLLER, "trainer", "worker", "replica"]
# What is drawn: "kill worker" and the like. All other counts are of what came of it.
DRAWN = [
    "kill",
    "stop",
    "leave",
    "join",
    "full disk",
    "no descriptors",
    "no shared memory",
    "flip bit",
]
NEVER = ["mixes", "torn reads", "undetected flips", "hangs"]  # The first one ends the drill.


def print_table(seed, fabrics):
    """Prints a row for each kind of thing that happened, and a column for each fabric."""
    counted = {what for report in fabrics.values() for what in report["counts"]}
    drawn = [f"{what} {role}" for what in DRAWN for role in ROLES if f"{what} {role}" in counted]
    drawn += ["nothing"] if "nothing" in counted else []
    rows = [("rounds", [report["rounds"] for report in fabrics.values()])]
    rows.append(("seconds", [round(report["seconds"]) for report in fabrics.values()]))
    for what in [*drawn, *sorted(counted - set(drawn))]:
        rows.append((what, [report["counts"].get(what, 0) for report in fabrics.values()]))
    rows += [(what, [0 for _ in fabrics]) for what in NEVER]
    width = max(len(what) for what, _ in rows) + 2
    print(f"{f'seed {seed}':<{width}}" + "".join(f"{fabric:>8}" for fabric in fabrics))
    for what, numbers in rows:
        print(f"{what:<{width}}" + "".join(f"{number:>8}" for number in numbers))


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--seconds", type=float, help="how long on each fabric; 60 by default")
    parser.add_argument("--rounds", type=int, help="how many rounds on each fabric")
    parser.add_argument(
        "--each", action="store_true", help="one fault after the other instead of a random one"
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn; 1 by default")
    parser.add_argument(
        "--from", type=int, default=1, dest="first", metavar="ROUND", help="begins with that round"
    )
    parser.add_argument(
        "--fabric",
        action="append",
        choices=["local", "tcp", "verbs"],
        help="can be given several times; by default local, then tcp",
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=list(FAULTS),
        dest="faults",
        help="draws this fault only; can be given several times",
    )
    parser.add_argument(
        "--copies",
        type=int,
        default=1,
        help="how many trainers hold each part of the tensor; 1 by default",
    )
    parser.add_argument(
        "--relays",
        action="store_true",
        help="each worker holds the whole tensor, and relays a part of it to the other",
    )
    parser.add_argument(
        "--no-digests",
        action="store_true",
        help="publishes without digests, so that the drill finds flipped bits",
    )
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object instead of a table"
    )
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if not Path(WAYBILL).exists():
        sys.exit(f"{WAYBILL} is missing: run tools/drills, which builds it")
    drill_machine.enter_own_mounts()
    report = drills(options)
    if options.json:
        print(json.dumps(report))
    elif report["fabrics"]:
        print_table(report["seed"], report["fabrics"])
    if report["failure"]:
        sys.exit(report["failure"])


if __name__ == "__main__":
    main()
