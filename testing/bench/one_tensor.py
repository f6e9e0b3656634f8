# SPDX-License-Identifier: Apache-2.0
"""Measures a large tensor from one trainer to one worker over tcp, beside gloo's broadcast and iperf3.

    bazel run -c opt //testing/bench:one_tensor

Each round runs all of them, so that pairs share whatever else the machine does. An update lasts from the
publish until the worker shows the version; a broadcast until the receiver has the tensor. Bare sockets
(bare_sockets.cc) move as many bytes over one connection, compute the same digests, and do nothing else.
Processor time is that of both processes. Options: --rounds, --megabytes.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from driven import Rank, start_controller, write_checkpoint
from iperf import Iperf

BARE_SOCKETS = "testing/bench/bare_sockets"  # Below the working directory, as in driven.py.
REPEATS = 5  # Of which the median counts.
TARGETS = {
    "update": "targets: 1.0 of gloo and of iperf3, at most 0.50 s/GB",
    "update, no digests": "target: 1.15 of gloo",
}
GLOO_PORT_FILE = "gloo"


def cpu_of(*pids):
    seconds = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


class Update:
    """A trainer and a worker."""

    def __init__(self, folder, digests):
        self._controller, address = start_controller(f"{folder}/decisions-{digests}")
        more = [] if digests else ["--no-digests"]
        self._trainer = Rank(address, folder, "tcp", "trainer", 0, 1, *more)
        self._worker = Rank(address, folder, "tcp", "worker", 0, 1)
        for rank in (self._trainer, self._worker):
            rank.wait_for("joined")
        self._version = 0
        self.run(0)  # The first one touches the memory.

    def run(self, size):
        """Returns gigabytes a second, and processor seconds a gigabyte."""
        times, cpu = [], cpu_of(self._trainer.pid, self._worker.pid)
        for _ in range(REPEATS):
            self._version += 1
            begin = time.monotonic()
            self._trainer.tell(f"publish {self._version}")
            error = self._trainer.wait_for("published").get("error")
            times.append(time.monotonic() - begin)
            if error:
                raise SystemExit(error)
        cpu = cpu_of(self._trainer.pid, self._worker.pid) - cpu
        return size / statistics.median(times) / 1e9, cpu / max(1, REPEATS * size / 1e9)

    def close(self):
        for process in (self._trainer, self._worker):
            process.kill()
        self._controller.kill()
        self._controller.wait()


def broadcast(rank, size, folder, results):
    """One of gloo's two processes."""
    import torch  # Slow to import, and not to be forked.
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{GLOO_PORT_FILE}", rank=rank, world_size=2
    )
    tensor = torch.zeros(size // 2, dtype=torch.bfloat16)
    dist.broadcast(tensor, 0)
    times, used = [], resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(REPEATS):
        dist.barrier()
        begin = time.monotonic()
        dist.broadcast(tensor, 0)
        times.append(time.monotonic() - begin)
    now = resource.getrusage(resource.RUSAGE_SELF)
    results.put(
        (
            rank,
            statistics.median(times),
            now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
        )
    )
    dist.barrier()


def run_gloo(size):
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        ranks = [
            context.Process(target=broadcast, args=(r, size, folder, results)) for r in range(2)
        ]
        for rank in ranks:
            rank.start()
        told = sorted(results.get(timeout=300) for _ in ranks)
        for rank in ranks:
            rank.join()
    cpu = sum(seconds for _, _, seconds in told)
    return size / told[1][1] / 1e9, cpu / (REPEATS * size / 1e9)


def run_sockets(size, *options):
    command = [BARE_SOCKETS, "--megabytes", str(size // 10**6), "--rounds", str(REPEATS), *options]
    done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return (
        done["bytes"] / statistics.median(done["seconds"]) / 1e9,
        statistics.mean(done["cpu_seconds"]) / (done["bytes"] / 1e9),
    )


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=512)
    options = parser.parse_args()
    rates, cpus = {}, {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, Iperf() as iperf:
        size = write_checkpoint(Path(folder), options.megabytes)
        updates = {
            "update": Update(folder, digests=True),
            "update, no digests": Update(folder, digests=False),
        }
        try:
            for _ in range(options.rounds):
                of_round = {name: update.run(size) for name, update in updates.items()}
                of_round["bare sockets"] = run_sockets(size)
                of_round["bare sockets, no digests"] = run_sockets(size, "--no-digests")
                of_round["gloo broadcast"] = run_gloo(size)
                done = iperf.run(1, options.megabytes)
                of_round["iperf3"] = done["rate"], done["cpu"]
                for name, (rate, cpu) in of_round.items():
                    rates.setdefault(name, []).append(rate)
                    cpus.setdefault(name, []).append(cpu)
        finally:
            for update in updates.values():
                update.close()
    columns = ["GB/s", "of bare sockets", "of gloo", "of iperf3", "CPU s/GB"]
    print(" " * 24 + "".join(f"{column:>20}" for column in columns))
    for name, found in rates.items():
        digests = name in ("update", "bare sockets")
        bare = "bare sockets" if digests else "bare sockets, no digests"
        cells = [spread(found)]
        for other in (bare, "gloo broadcast", "iperf3"):
            cells.append(spread([a / b for a, b in zip(found, rates[other], strict=True)]))
        cells.append(spread(cpus[name]))
        print(f"{name:<24}" + "".join(f"{cell:>20}" for cell in cells), "", TARGETS.get(name, ""))


if __name__ == "__main__":
    main()
