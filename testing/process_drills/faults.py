# SPDX-License-Identifier: Apache-2.0
"""The faults of a drill, each of which strikes while a version is on its way.

A fault is called right after begin_publish(). It ends when the publish has ended, and leaves a job
from which nothing is withheld any more, but in which processes may be missing.
"""

import threading
import time
from dataclasses import dataclass, field

import drill_machine
from drilled_job import (
    ANSWER_SECONDS,
    CONTROLLER,
    NODES,
    REPLICA,
    Failure,
    Job,
    role_of,
)
from flipped_bits import publish_and_flip

NO_PAGES = "File too large"  # EFBIG: how memfd_create() and files end at RLIMIT_FSIZE.
FLIP_ATTEMPTS = 40
HALT_SECONDS = 30 if NODES else 5
KILLS_WHILE_JOINING = 4
JOINING_SECONDS = 2 if NODES else 0.15  # About as long as a rank takes to join.


@dataclass
class Aftermath:
    """What a fault leaves."""

    restarted: set = field(default_factory=set)  # Killed, and here again or soon.
    joining: set = field(default_factory=set)  # Started, and not yet heard of.
    shortage: bool = False  # What joins may have been refused for want of something.


def _count(job: Job, what, name):
    job.counts[f"{what} {role_of(name)}"] += 1


def _start(job: Job, name, after: Aftermath):
    job.start(name)
    after.restarted.add(name)
    if name != CONTROLLER:
        after.joining.add(name)


def _kill(job: Job, name, after: Aftermath):
    """Kills a process. The controller is restarted at once, ranks when the publish has ended."""
    job.kill(name)
    after.restarted.add(name)
    if name == CONTROLLER:
        job.start(CONTROLLER)


def _start_missing(job: Job, after: Aftermath):
    """Starts what was killed; the replica may stay away for some rounds."""
    for name in job.ranks:
        if name not in job.processes and (name != REPLICA or job.random.random() < 0.5):
            _start(job, name, after)


def kill(job: Job):
    after = Aftermath()
    name = job.random.choice(list(job.processes))
    job.moment()
    _count(job, "kill", name)
    went_on = name in job.named("trainer") and not job.publish_is_over()
    _kill(job, name, after)
    errors = [error for error in job.end_publish() if not job.is_of_replica(error)]
    if went_on and not errors:
        job.counts["an update went on without its trainer"] += 1
    _start_missing(job, after)
    return after


def kill_joining(job: Job):
    """Kills a rank, and some more times while it joins again: while its peers open lanes to it."""
    after = Aftermath()
    name = job.random.choice(job.ranks)
    _count(job, "kill joining", name)
    if name in job.processes:
        job.kill(name)
    job.end_publish()
    for _ in range(KILLS_WHILE_JOINING):
        job.start(name)
        job.moment_within(JOINING_SECONDS)
        job.kill(name)
    _start(job, name, after)
    return after


def stop(job: Job):
    name = job.random.choice(list(job.processes))
    job.moment()
    _count(job, "stop", name)
    timer = job.stop_for(name, 0.1 * 40 ** job.random.random())
    job.end_publish()
    timer.join()
    return Aftermath()


def leave_or_join(job: Job):
    """The replica leaves, or joins if it is away."""
    after = Aftermath()
    if REPLICA in job.processes:
        job.moment()
        job.counts["leave replica"] += 1
        job.leave(REPLICA)
        after.restarted.add(REPLICA)
    else:
        job.counts["join replica"] += 1
        _start(job, REPLICA, after)
    job.end_publish()
    return after


def nothing(job: Job):
    job.counts["nothing"] += 1
    job.end_publish()
    return Aftermath()


def _restart_controller(job: Job, after: Aftermath, full):
    """Restarts the controller as an operator does: on the full disk, and again with space."""
    job.processes.pop(CONTROLLER)
    after.restarted.add(CONTROLLER)
    if full:
        controller = job.launch_controller()
        told = controller.wait_for("said", ANSWER_SECONDS)
        if told is not None:
            job.counts["the controller started on a full disk"] += 1
            job.adopt_controller(controller, told)
            job.disk.free()
            return
        words = controller.end()
        if "No space left" not in words:
            raise Failure(f"a full disk, and the controller says: {words}")
        job.counts["the controller refused to start on a full disk"] += 1
    job.disk.free()
    job.start(CONTROLLER)


def full_disk(job: Job):
    """The disk of the controller's decisions is full, or takes no byte more."""
    after = Aftermath()
    how = job.random.choice(["full", "full when it restarts", "no byte more"])
    job.moment()
    _count(job, "full disk", CONTROLLER)
    controller = job.processes[CONTROLLER]
    job.disk.fill()
    if how == "full":
        job.end_publish()
        if controller.ended_within(0):
            _restart_controller(job, after, full=False)
        job.disk.free()
        return after
    if how == "full when it restarts":
        controller.kill()
        _restart_controller(job, after, full=True)
        job.end_publish()
        return after
    # What was reserved on the disk is taken too. The next decision cannot be recorded.
    restore = drill_machine.forbid_files(controller.pid)
    end = time.monotonic() + HALT_SECONDS
    while not job.publish_is_over() and time.monotonic() < end:
        if controller.ended_within(0.02):
            break
    # It looks once a second whether it has halted.
    if controller.ended_within(1.5):
        words = controller.end()
        if "halted" not in words or "decision" not in words:
            raise Failure(f"the controller cannot record, and says: {words}")
        job.counts["the controller halted"] += 1
        _restart_controller(job, after, full=True)
    else:
        restore()  # It had recorded the decision before.
        job.disk.free()
    job.end_publish()
    return after


def _under_shortage(job: Job, victim, restore, after: Aftermath, disturb):
    """Publishes while `victim` can take nothing more, then gives it back what it lacks."""
    after.shortage = True
    others = [name for name in job.ranks if name in job.processes and name != victim]
    killed = job.random.choice(others) if disturb and job.random.random() < 0.5 else None
    if killed is not None:
        _kill(job, killed, after)
    errors = job.end_publish()
    if killed is None:
        errors += job.publish()
        restore()
    else:
        # It joins while its peer cannot open lanes, and then can.
        timer = threading.Timer(job.random.uniform(0.05, 0.5), restore)
        timer.start()
        _start(job, killed, after)
        timer.join()
    _start_missing(job, after)
    return errors


def no_descriptors(job: Job):
    """A process gets no descriptor beyond those that it has."""
    after = Aftermath()
    victim = job.random.choice(list(job.processes))
    job.moment()
    _count(job, "no descriptors", victim)
    restore = drill_machine.forbid_descriptors(job.processes[victim].pid)
    errors = _under_shortage(job, victim, restore, after, disturb=True)
    if any("Too many open files" in error for error in errors):
        job.counts["an update failed for want of descriptors"] += 1
    return after


def no_shared_memory(job: Job):
    """A rank starts, or renews what it shares, and gets no pages; /dev/shm is full."""
    after = Aftermath()
    job.shared_memory.fill()
    try:
        if job.random.random() < 0.3:
            _start_without_pages(job, after)
        else:
            _renew_without_pages(job, after)
    finally:
        job.shared_memory.free()
    return after


def _start_without_pages(job: Job, after: Aftermath):
    name = job.random.choice(job.named("trainer", "worker", "replica"))
    job.moment()
    _count(job, "no shared memory", name)
    _kill(job, name, after)
    job.end_publish()
    job.start(name)
    drill_machine.forbid_files(job.processes[name].pid)
    why = job.join_error(name)
    if why is None:
        raise Failure(f"{name} was to have no pages, and joined")
    if NO_PAGES not in why:
        raise Failure(f"{name} has no pages, and says: {why}")
    job.counts["a rank without shared memory refused to start"] += 1
    if not job.processes[name].ended_within(ANSWER_SECONDS):
        raise Failure(f"hang: {name} does not end after {why}")
    job.processes.pop(name)
    _start_missing(job, after)


def _renew_without_pages(job: Job, after: Aftermath):
    victim = job.random.choice(job.named("worker", "replica"))
    _count(job, "no shared memory", victim)
    restore = drill_machine.forbid_files(job.processes[victim].pid)
    # A trainer that dies leaves a buffer that must be renewed; so does a flipped bit.
    if job.random.random() < 0.5:
        job.end_publish()
        publish_and_flip(job, victim)
        errors = _under_shortage(job, victim, restore, after, disturb=False)
    else:
        job.moment()
        errors = _under_shortage(job, victim, restore, after, disturb=True)
    if any(NO_PAGES in error for error in errors):
        job.counts["an update failed for want of shared memory"] += 1


def flip(job: Job):
    """A bit of the update arrives wrong."""
    name = job.random.choice(job.named("worker", "replica"))
    job.end_publish()
    for _ in range(FLIP_ATTEMPTS):
        struck = publish_and_flip(job, name)
        errors = job.end_publish()
        if struck:
            break
    else:
        job.counts["a flip came too late"] += 1
        return Aftermath()
    _count(job, "flip bit", name)
    if any("digest" in error for error in errors):
        job.counts["a flipped bit failed an update"] += 1
    elif not errors:
        # It may have been of an update from a lender, who was then asked again or replaced.
        try:
            job.check()
        except Failure as failure:
            raise Failure(f"undetected flip: {failure}") from None
        job.counts["a flipped bit was of a loan"] += 1
    return Aftermath()


FAULTS = {
    "kill": kill,
    "joining": kill_joining,
    "stop": stop,
    "leave": leave_or_join,
    "nothing": nothing,
    "disk": full_disk,
    "descriptors": no_descriptors,
    "shm": no_shared_memory,
    "flip": flip,
}
