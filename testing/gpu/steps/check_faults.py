# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed in the middle of an update, and a GPU without free memory: the same job recovers."""

import time

import checks
import ranks

MEGABYTES = 4 if checks.SMALL else 4000
SPARE_MEBIBYTES = 2


def recovers(job, role, *options):
    """Starts the rank anew. Returns how long it takes until the next update is shown and right."""
    begin = time.monotonic()
    setattr(job, role, job.start(role, *options))
    getattr(job, role).expect("joined")
    job.update()
    return f"the next update was right {time.monotonic() - begin:.1f} s after the rank began anew"


def kill_in_an_update(role, at):
    """Kills the rank when that part of an update's time has passed."""
    with ranks.Job("local", MEGABYTES, "plain") as job:
        job.await_joined()
        took, *_ = [job.update() for _ in range(2)][-1]
        job.begin()
        said = "" if job.trainer.is_silent_for(at * took) else "the update had ended before; "
        getattr(job, role).kill()
        if role == "worker":
            word, rest = job.trainer.expect("failed", "published")
            said += f"the trainer said: {word} {rest}; "
        return said + recovers(job, role)


def run_out_of_memory(kind):
    """A trainer joins where nothing is left for Waybill, and then with memory again."""
    with ranks.Job("local", MEGABYTES, kind) as job:
        job.await_joined()
        job.update()
        job.trainer.kill()
        try:
            said = recovers(job, "trainer", "allocated", SPARE_MEBIBYTES)
        except ranks.Failure as failure:
            said = f"without memory: {failure}"
        job.trainer.kill()
        return f"{said}; with memory again {recovers(job, 'trainer')}"


def check(name, call, *arguments):
    if checks.seconds_left() < 5:
        checks.skipped(name, "no time was left")
        return
    try:
        checks.passed(name, call(*arguments))
    except ranks.Failure as failure:
        checks.failed(name, str(failure))


def main():
    for at in (0.3, 0.6):
        check(f"the trainer is killed after {at} of an update", kill_in_an_update, "trainer", at)
        check(f"the worker is killed after {at} of an update", kill_in_an_update, "worker", at)
    for kind in ("plain", "fp8"):
        name = f"no free memory on the GPU, {kind}"
        if checks.SMALL:
            checks.skipped(name, "a simulated GPU does not run out of memory")
        else:
            check(name, run_out_of_memory, kind)


main()
