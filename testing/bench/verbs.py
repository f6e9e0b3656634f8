# SPDX-License-Identifier: Apache-2.0
"""Measures the verbs fabric on SoftRoCE beside ib_write_bw, in the same boot of the same guest.

    bazel run //testing/bench:verbs

The guest's clock counts instructions, on one virtual CPU: rates repeat to 0.3 % whatever else this
machine does, and tell overhead per byte; what they don't tell is how CPUs overlap. "Best" is of
--rounds rounds. With --demo also two trainers to two workers beside two ib_write_bw at once (some
minutes). With --kills N, in a guest with a clock of its own: how long until the death of the peer
is told.
"""

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.join(os.environ.get("RUNFILES_DIR", "."), "waybill")


def path(name):
    found = os.path.join(HERE, name)
    return os.path.realpath(found if os.path.exists(found) else name)


def guest(*command, options=()):
    done = subprocess.run(
        [path("testing/softroce/rxe_guest"), "run", "--timeout=3000", *options, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"the guest ended with {done.returncode}: {done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name, rates, reference=None, target=""):
    ratio = f"{max(rates) / max(reference):8.3f}" if reference else " " * 8
    print(f"{name:<34}{max(rates):9.1f} {min(rates):9.1f}{ratio}  {target}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print what was measured, for programs")
    options = parser.parse_args()
    transfer, waybill = path("testing/bench/fabric_transfer"), path("tools/waybill/waybill")
    if options.kills > 0:
        command = [transfer, "--fabric", "verbs", "--nics", "rxe2,rxe1", "--mib", "16"]
        told = guest(*command, "--kills", str(options.kills))["failure_told_seconds"]
        told.sort()
        print(
            f"{len(told)} receivers killed while writes streamed; their death was told after "
            f"{told[len(told) // 2] * 1e3:.1f} ms median, {told[-1] * 1e3:.1f} ms at most"
        )
        return
    results = guest(
        "python3",
        path("testing/bench/verbs_in_guest.py"),
        transfer,
        waybill,
        str(options.rounds),
        "1" if options.demo else "0",
        options=("--icount=0", "--memory=6144"),
    )
    if options.json:
        print(json.dumps(results))
        return
    print(f"{'':<34}{'best':>9} {'least':>9}{'ratio':>8}  MB/s of the guest's clock")
    bulk, small = results["ib_write_bw 64 KiB"], results["ib_write_bw 4 KiB"]
    row("ib_write_bw -s 65536 -n 640", bulk)
    row("verbs, 1 MiB chunks", results["verbs, bulk"], bulk, "target: 0.95")
    row("verbs, both ends digest", results["verbs, bulk, digests"], bulk)
    row("ib_write_bw -s 4096", small)
    row("verbs, posts of 64 x 4 KiB", results["verbs, 4 KiB writes"], small, "target: 0.95")
    counts = results["counts"]
    print(
        f"work requests for each ibv_post_send  "
        f"{counts['work_requests'] / counts['doorbells']:.1f}  (4 KiB writes)"
    )
    if options.demo:
        two = results["two ib_write_bw"]
        row("two ib_write_bw at once", two)
        row("demo, 2 x 2, digests off", results["demo, digests off"], two, "target: 1.0")
        row("demo, 2 x 2, digests on", results["demo, digests on"], two, "target: 1.0")


if __name__ == "__main__":
    main()
