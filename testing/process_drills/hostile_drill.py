# SPDX-License-Identifier: Apache-2.0
"""Lets strangers without the job's token harass its ports while it updates.

usage: bazel run //testing/process_drills:hostile_drill -- [--blocks N] [--kind KIND]... [--json]

A controller, two trainers, two workers and a replica update a small tensor over tcp. For each kind of
stranger, three blocks of 50 updates take turns: without it, with it, and while it does the same to another job
that updates nothing. The table has the times of the updates for the trainer, and what they are in the second and
the third block to what they are in the first. Every update must commit.

The strangers share the machine with the job, as real ones do not: they run at the lowest priority, and make 100
connections a second, or hold 200. The third block shows how much of the delay comes from that alone: strangers and
those who answer them take the same processor time, but touch none of the job's ports. The last column is the
processor time that the other job's processes spend for each attack, with the little that they spend anyway.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import socket
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path

import drill_machine
import drilled_job
from drilled_job import Failure, Job

ROWS = 32  # 64 KiB.
BLOCK = 50  # Updates.
PER_SECOND = 100
HELD = 200
BLOCKS = ("without", "beside", "elsewhere")  # The stranger is not there, at the job, at another.


def listening_ports(pid):
    """The TCP ports on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            if link.startswith("socket:["):
                inodes.add(link[len("socket:[") : -1])
    ports = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return sorted(ports)


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    connection.settimeout(0.5)
    return connection


# --- strangers: each does one thing with one port, as often as it is asked to ---


def silent(port, held):
    """Connects, says nothing, and holds on."""
    held.append(connect(port))


def garbage(port, _):
    """Says what no protocol has, and goes."""
    with connect(port) as connection:
        connection.sendall(random.Random(port).randbytes(512))


def half_greeting(port, held):
    """Begins as TLS and HTTP/2 clients do, stops in the middle, and holds on."""
    connection = connect(port)
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00" if len(held) % 2 else b"PRI * HTTP/2.0\r\n")
    held.append(connection)


def keyless(port, _):
    """Shakes hands without a key of the job."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLError), context.wrap_socket(connect(port)) as connection:
        connection.recv(1)


def unread(port, held):
    """Asks for everything, and does not read the answer."""
    connection = connect(port)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    held.append(connection)


KINDS = {
    kind.__name__.replace("_", "-"): kind
    for kind in (silent, garbage, half_greeting, keyless, unread)
}


def harass(kind, ports, attacks, stop):
    """Attacks the ports in turn until told to stop."""
    os.nice(19)
    held = []
    while not stop.is_set():
        begin = time.monotonic()
        port = ports[attacks.value % len(ports)]
        with contextlib.suppress(OSError):
            KINDS[kind](port, held)
        attacks.value += 1
        if len(held) > HELD:
            held.pop(0).close()
        stop.wait(max(0.0, 1 / PER_SECOND - (time.monotonic() - begin)))
    for connection in held:
        connection.close()


@contextlib.contextmanager
def stranger(kind, ports, attacks):
    """Lets a process of its own attack the ports."""
    stop = multiprocessing.Event()
    process = multiprocessing.Process(target=harass, args=(kind, ports, attacks, stop), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def update_times(job):
    seconds = []
    for _ in range(BLOCK):
        job.begin_publish()
        begin = time.perf_counter()
        errors = job.end_publish()
        if errors:
            raise Failure(f"version {job.version}: {errors}")
        seconds.append(time.perf_counter() - begin)
    return seconds


def ports_of(job, kind):
    if kind == "unread":
        return [job.metrics_port]
    return [port for process in job.processes.values() for port in listening_ports(process.pid)]


def processor_seconds(job):
    nanoseconds = 0
    for process in job.processes.values():
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with contextlib.suppress(OSError):  # It has ended.
                schedstat = Path(f"/proc/{process.pid}/task/{thread}/schedstat").read_text()
                nanoseconds += int(schedstat.split()[0])
    return nanoseconds / 1e9


def drill(job, other, kind, blocks):
    """Returns what the job's updates took without that stranger, with it, and with it at the other job, in seconds."""
    ports, ports_of_other = ports_of(job, kind), ports_of(other, kind)
    attacks, attacks_on_other = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)
    times = {name: [] for name in BLOCKS}
    busy = 0.0  # The processor time of the other job while it is attacked.
    for _ in range(blocks):
        times["without"] += update_times(job)
        with stranger(kind, ports, attacks):
            times["beside"] += update_times(job)
        begin = processor_seconds(other)
        with stranger(kind, ports_of_other, attacks_on_other):
            times["elsewhere"] += update_times(job)
        busy += processor_seconds(other) - begin
    job.check()
    row = {"kind": kind, "ports": len(ports), "attacks": attacks.value}
    row["processor_seconds_per_attack"] = busy / attacks_on_other.value
    for name, seconds in times.items():
        hundredths = statistics.quantiles(seconds, n=100)
        row[f"{name}_p50_seconds"], row[f"{name}_p99_seconds"] = hundredths[49], hundredths[98]
    return row


def print_head():
    print(
        f"{'':<30}{'p50':>8}{'with it':>15}{'at another':>15}{'p99':>10}{'with it':>15}{'at another':>15}{'an attack':>12}"
    )
    print(f"{'stranger':<15}{'ports':>6}{'attacks':>9}{'ms':>8}{'ms ratio':>15}{'ms ratio':>15}"
          f"{'ms':>10}{'ms ratio':>15}{'ms ratio':>15}{'CPU ms':>12}")  # fmt: skip


def print_row(row):
    line = f"{row['kind']:<15}{row['ports']:>6}{row['attacks']:>9}"
    for part, width in (("p50", 8), ("p99", 10)):
        without, beside, elsewhere = (1e3 * row[f"{name}_{part}_seconds"] for name in BLOCKS)
        line += f"{without:>{width}.2f}"
        line += "".join(f"{ms:>9.2f}{ms / without:>6.2f}" for ms in (beside, elsewhere))
    print(f"{line}{1e3 * row['processor_seconds_per_attack']:>12.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--blocks", type=int, default=10, help="of 50 updates of each sort; 10 by default"
    )
    parser.add_argument("--kind", action="append", choices=list(KINDS), dest="kinds",
                        help="only this stranger; can be given several times")  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="prints one JSON object instead of a table"
    )
    options = parser.parse_args()
    if not Path(drilled_job.WAYBILL).exists():
        sys.exit(f"{drilled_job.WAYBILL} is missing: run this with bazel run")
    drill_machine.enter_own_mounts()
    rows = []
    if not options.json:
        print_head()
    with contextlib.ExitStack() as stack:
        jobs = []
        for _ in range(2):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="waybill-hostile-"))
            jobs.append(Job(Path(folder), "tcp", rows=ROWS, metrics=True))
            stack.callback(jobs[-1].close)
        try:
            for kind in options.kinds or KINDS:
                rows.append(drill(*jobs, kind, options.blocks))
                if not options.json:
                    print_row(rows[-1])
            for job in jobs:
                job.check_all_run()
        except Failure as failure:
            sys.exit(str(failure))
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
