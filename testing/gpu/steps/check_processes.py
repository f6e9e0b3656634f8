# SPDX-License-Identifier: Apache-2.0
"""Updates from one process to another on one GPU, beside what the GPU's own copy takes."""

import statistics

import checks
import ranks
from driver import Driver, ref, size

# Fabric, kind, memory, megabytes and how many updates are measured.
CASES = [
    ("local", "plain", "allocated", 1000, 5),
    ("local", "plain", "created", 1000, 3),
    ("local", "undigested", "allocated", 1000, 3),
    ("local", "cast", "allocated", 1000, 3),
    ("local", "transposed", "allocated", 1000, 3),
    ("local", "fp8", "allocated", 1000, 3),
    ("tcp", "plain", "allocated", 1000, 2),
    ("tcp", "fp8", "allocated", 1000, 2),
    ("local", "plain", "allocated", 16000, 3),
    ("local", "fp8", "allocated", 16000, 2),
    ("local", "plain", "created", 16000, 2),
]
SMALL_CASES = [(*case[:3], 6, 1) for case in CASES if case[3] == 1000]


def copies(megabytes):
    """Returns the rates of the GPU's own copies in GB/s, by kind."""
    status, output = checks.run(
        [checks.PROGRAMS / "gpu_rank", "copies", megabytes], checks.seconds_left(30)
    )
    if status != 0:
        said = output.strip().splitlines()[-1:]
        checks.failed("copies", f"{checks.ended(status, 30)}: {said}\n{output}")
        return {}
    rates = {}
    for line in output.splitlines()[1:]:
        kind, rate = line.split()
        rates.setdefault(kind, []).append(float(rate))
    for kind, found in rates.items():
        checks.fact(
            f"copy of {megabytes} MB {kind}",
            f"{statistics.median(found):.1f} GB/s [{min(found):.1f}, {max(found):.1f}]",
        )
    checks.passed("copies", f"{output.splitlines()[0]}")
    return {kind: statistics.median(found) for kind, found in rates.items()}


def memory_bytes():
    """The memory of the GPU; a large number if only its own driver's library knows."""
    try:
        driver, total = Driver(), size()
        driver.must("cuInit", 0)
        driver.must("cuDeviceTotalMem_v2", ref(total), 0)
    except (OSError, RuntimeError):
        return 1 << 60
    return total.value


def run_case(fabric, kind, memory, megabytes, count, rates):
    check = f"{fabric}, {kind}, {memory}, {megabytes} MB"
    if 2.5 * megabytes * 1e6 > memory_bytes():
        checks.skipped(check, f"both ranks together do not fit into {memory_bytes()} bytes")
        return
    if checks.seconds_left() < 5:
        checks.skipped(check, "no time was left")
        return
    try:
        with ranks.Job(fabric, megabytes, kind, memory) as job:
            job.await_joined()
            first, *_ = job.update()  # It opens what it reads.
            done = [job.update() for _ in range(count)]
            job.leave()
            lanes = job.trainer.lanes[:1]
    except ranks.Failure as failure:
        checks.failed(check, str(failure))
        return
    seconds = statistics.median(took for took, _, _ in done)
    bound = rates.get("within" if fabric == "local" else "to-host")
    of_copy = f", {megabytes / 1e3 / seconds / bound:.2f} of the GPU's copy" if bound else ""
    checks.passed(check)
    checks.fact(
        check,
        f"{seconds * 1e3:.1f} ms, {megabytes / 1e3 / seconds:.1f} GB/s{of_copy}; first {first * 1e3:.1f} ms; "
        f"waits for the GPU: trainer {done[-1][1]}, worker {done[-1][2]}; {lanes}",
    )


def main():
    rates = copies(4 if checks.SMALL else 2000)
    for case in SMALL_CASES if checks.SMALL else CASES:
        run_case(*case, rates)


main()
