# SPDX-License-Identifier: Apache-2.0
"""Measures the tcp fabric on this machine, each round beside iperf3's in the same minute.

    bazel run -c opt //testing/bench:tcp

1 GiB between two processes over loopback, with 1 and with 4 lanes against as many streams of
iperf3. Rates and processor time (of both processes together) are compared by pairs: the machine
may be busy with something else, but then it is for both. Options: --rounds, --mib, --json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

from iperf import Iperf

TRANSFER = os.path.join(
    os.environ.get("RUNFILES_DIR", "."), "waybill/testing/bench/fabric_transfer"
)


def transfer(lanes, mib, *more):
    program = TRANSFER if os.path.exists(TRANSFER) else "testing/bench/fabric_transfer"
    command = [program, "--fabric", "tcp", "--lanes", str(lanes), "--mib", str(mib)]
    command += ["--rounds", "2", *more]
    done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    size, last = done["bytes"] / 1e9, done["rounds"][-1]  # The first one makes the pages warm.
    cpu = last["sender_cpu_seconds"] + last["receiver_cpu_seconds"]
    calls = {
        name: done[end][f"{name}_calls"] / len(done["rounds"]) / (done["bytes"] / 2**30)
        for end, name in (("sender", "send"), ("receiver", "receive"))
    }
    return {"rate": size / last["seconds"], "cpu": cpu / size, "calls": calls}


def show(name, values, unit, target="", digits=2):
    values = sorted(values)
    median, low, high = values[len(values) // 2], values[0], values[-1]
    print(
        f"{name:<36}{median:9.{digits}f} {unit:<8}[{low:.{digits}f}, {high:.{digits}f}]  {target}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="pairs for each row (default 10)")
    parser.add_argument("--mib", type=int, default=1024, help="bytes of a round (default 1024)")
    parser.add_argument("--json", action="store_true", help="print what was measured, for programs")
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        sys.exit("iperf3 is not installed: it is what the fabric is compared with")

    results = {}
    with Iperf() as iperf:
        for _ in range(options.rounds):
            for lanes in (1, 4):
                pair = (
                    iperf.run(lanes, options.mib),
                    transfer(lanes, options.mib),
                    transfer(lanes, options.mib, "--digests"),
                )
                results.setdefault(lanes, []).append(pair)
    if options.json:
        print(json.dumps(results))
        return

    print(
        f"{os.cpu_count()} cores, {options.mib} MiB, {options.rounds} pairs; median [least, most]"
    )
    for lanes, pairs in results.items():
        print(f"\n{lanes} lane{'s' if lanes > 1 else ''}")
        show("iperf3", [theirs["rate"] for theirs, _, _ in pairs], "GB/s")
        show("tcp fabric", [ours["rate"] for _, ours, _ in pairs], "GB/s")
        ratios = [ours["rate"] / theirs["rate"] for theirs, ours, _ in pairs]
        show("    of iperf3, by pairs", ratios, "", "target: at least 0.9")
        show("both ends digest too", [slow["rate"] for _, _, slow in pairs], "GB/s")
        ratios = [slow["rate"] / theirs["rate"] for theirs, _, slow in pairs]
        show("    of iperf3, by pairs", ratios, "")
        show("iperf3, processor time", [theirs["cpu"] for theirs, _, _ in pairs], "s/GB")
        show("tcp fabric", [ours["cpu"] for _, ours, _ in pairs], "s/GB", "target: at most 0.35")
        ratios = [ours["cpu"] / theirs["cpu"] for theirs, ours, _ in pairs]
        show("    of iperf3, by pairs", ratios, "")
        for name in ("send", "receive"):
            show(
                f"calls to {name}", [ours["calls"][name] for _, ours, _ in pairs], "per GiB", "", 0
            )


if __name__ == "__main__":
    main()
