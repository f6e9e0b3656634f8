# SPDX-License-Identifier: Apache-2.0
"""Measures whole updates on this machine, each beside its bound in the same run.

    bazel run -c opt //testing/bench:update

Prints, for Qwen3-0.6B's shapes from 2 trainers to 2 workers over `local` in shadow mode:
the update with and without digests against memcpy, and GPT-2's, whose weights are transposed on the
way; one tensor of 512 MiB from one trainer to one worker; the latency of one small tensor; the time of
planning; a trainer's memory; and the counts, which do not vary; then the same update as block FP8 beside BF16, pair by pair, and what maxima cost.
Two bounds stand below each of the first rows: what memory allows, which is memcpy, and with digests one
read of what was copied; and the same routes with the same kernels in one process without a job
(bare_update.cc).
Options: --rounds, --json, --formats (these only).
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

WAYBILL = "tools/waybill/waybill"  # Below the working directory, which is that of the runfiles.
BARE_UPDATE = "testing/bench/bare_update"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def spread(values):
    values = sorted(values)
    return values[len(values) // 2], values[0], values[-1]


def show(name, values, unit, target, digits=2):
    median, low, high = spread(values)
    print(
        f"{name:<46} {median:9.{digits}f} {unit:<6} [{low:.{digits}f}, {high:.{digits}f}]   {target}"
    )


def waybill(*arguments):
    return run(WAYBILL, *arguments)


def demo(*options, model="qwen3-0.6b"):
    """The median of some updates, and its fraction of memcpy's rate, measured in the same run."""
    return waybill("demo", "--model", model, "--versions", "7", "--no-check", "--json", *options)


def with_bare(model, *options):
    """A demo, and the same routes without a job: `bare`."""
    found = demo(*options, model=model)
    found["bare"] = run(BARE_UPDATE, "--model", model)
    if found["bare"]["update_bytes"] != found["update_bytes"]:
        sys.exit(f"{model}: the bare update moves other bytes than the demo")
    return found


def show_bulk(name, runs, digests, target):
    """Updates of memcpy's rate; then of their bounds, pair by pair."""
    seconds = "seconds" if digests else "seconds_without_digests"
    show(name, [r["fraction_of_copy"] for r in runs], "", target)
    show("    time of an update", [1e3 * r["median_seconds"] for r in runs], "ms", "", 1)
    bare = [spread(r["bare"][seconds])[0] for r in runs]
    show("    time of its routes without a job", [1e3 * b for b in bare], "ms", "", 1)
    ratios = [b / r["median_seconds"] for b, r in zip(bare, runs, strict=True)]
    show("    rate, of its routes without a job", ratios, "", "")
    if digests:
        rates = [
            (r["bare"]["copy_bytes_per_second"], r["bare"]["read_bytes_per_second"]) for r in runs
        ]
        shares = [read / (copy + read) for copy, read in rates]
        show("    memcpy and one read, of memcpy", shares, "", "what memory allows")


def show_formats(rounds):
    """Block FP8 beside BF16, a pair a round; then the processor time of maxima, by trainers."""
    pairs = [[demo("--format", name) for name in ("bf16", "fp8-block")] for _ in range(rounds)]
    ratios = [fp8["median_seconds"] / bf16["median_seconds"] for bf16, fp8 in pairs]
    show("update, block FP8, of the same in BF16", ratios, "", "target: at most 1.3")
    for i, name in enumerate(("BF16", "block FP8")):
        runs = [pair[i] for pair in pairs]
        show(f"    time in {name}", [1e3 * r["median_seconds"] for r in runs], "ms", "", 1)
        print(f"    bytes in {name:<33} {runs[0]['update_bytes']:9d}")
    for trainers in (8, 7):
        run = demo("--format", "fp8-block", "--trainers", str(trainers))
        last = [t["last_update"] for t in run["trainers"]]
        cpu = sum(t["cpu_seconds"] for t in last)
        trade = sum(t["trade_cpu_seconds"] for t in last)
        maxima = sum(t["maxima_cpu_seconds"] for t in last)
        print(
            f"{trainers} trainers: trading maxima {100 * trade / cpu:.2f} % of the trainers' processor"
            f" time (target: under 5), finding those that are traded {100 * maxima / cpu:.1f} %;"
            f" {sum(t['maxima_messages'] for t in last)} messages,"
            f" {sum(t['maxima_bytes'] for t in last)} bytes"
        )


def write_checkpoint(directory, rows):
    """One tensor of rows of 128 bytes. Each trainer holds some of them."""
    data = bytes(range(256)) * (rows // 2)
    entry = {"dtype": "BF16", "shape": [rows, 64], "data_offsets": [0, len(data)]}
    header = json.dumps({"w": entry})
    with open(os.path.join(directory, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header.encode() + data)


def alone(rounds):
    """Updates of one tensor of 512 MiB, of one trainer and one worker: the other core is idle."""
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, rows=512 * 2**20 // 128)
        ranks = ["--checkpoint", directory, "--trainers", "1", "--workers", "1"]
        common = ["--versions", "7", "--no-check", "--json"]
        return [waybill("demo", *ranks, *common) for _ in range(rounds)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs for each row (default 3)")
    parser.add_argument("--json", action="store_true", help="print what was measured, for programs")
    parser.add_argument("--formats", action="store_true", help="only block FP8 beside BF16")
    options = parser.parse_args()
    if options.formats:
        show_formats(options.rounds)
        return

    with_digests, without, transposed = [], [], []
    for _ in range(options.rounds):
        with_digests.append(with_bare("qwen3-0.6b"))
        without.append(with_bare("qwen3-0.6b", "--no-digests"))
        transposed.append(with_bare("gpt2"))
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, rows=32)
        small = waybill(
            "demo", "--checkpoint", directory, "--versions", "205", "--no-check", "--json"
        )
    one_tensor = alone(options.rounds)
    plans = [waybill("plan", "--model", "qwen3-0.6b", "--json") for _ in range(9)]
    if options.json:
        print(
            json.dumps(
                {
                    "digests": with_digests,
                    "no_digests": without,
                    "transposed": transposed,
                    "one_tensor": one_tensor,
                    "small": small,
                    "plans": plans,
                }
            )
        )
        return

    print(f"{os.cpu_count()} cores; median [least, most]\n")
    copies = [r["copy_bytes_per_second"] / 1e9 for r in with_digests + without + transposed]
    show("memcpy, the reference", copies, "GB/s", "")
    show_bulk("update, digests on, of memcpy", with_digests, True, "target: at least 0.62")
    show_bulk("update, digests off, of memcpy", without, False, "target: at least 0.9")
    show_bulk("GPT-2, transposed, digests on, of memcpy", transposed, True, "target: at least 0.4")

    fractions = [r["fraction_of_copy"] for r in one_tensor]
    show("one tensor of 512 MiB, 1 to 1, of memcpy", fractions, "", "target: at least 0.5")

    updates = small["updates"][5:]  # The first ones are warm-up.
    times = sorted(u["seconds"] for u in updates)
    hops = [1 - u["moving_seconds"] / u["seconds"] for u in updates]
    show(
        f"one 4 KiB tensor, {len(times)} updates",
        [1e3 * t for t in times],
        "ms",
        "target: at most 2",
    )
    print(f"{'    p99':<46} {1e3 * times[int(0.99 * len(times))]:9.2f} ms")
    show("    share of the hops", hops, "", "the rest is between START and SENT")

    show("planning", [1e3 * p["seconds"] for p in plans], "ms", "target: under 20", 1)
    enqueued = [t["last_update"]["enqueue_seconds"] for r in with_digests for t in r["trainers"]]
    show("handing over the whole plan", [1e6 * t for t in enqueued], "us", "target: at most 5")
    for trainer in with_digests[-1]["trainers"]:
        memory = trainer["last_update"]["memory"]
        over = memory["anonymous_peak_bytes"] - trainer["weight_bytes"]
        print(
            f"{trainer['name'] + ', anonymous beyond weights and ring':<46} {over / 2**20:9.1f} MiB"
            f"    target: at most 64; maps of others and arenas {memory['shared_bytes'] / 2**20:.0f} MiB,"
            f" clean file pages {memory['file_bytes'] / 2**20:.0f} MiB"
        )
    print("\ncounts of an update, a trainer:")
    for trainer in with_digests[-1]["trainers"]:
        last = trainer["last_update"]
        print(
            f"    {trainer['name']}: {last['bytes']} bytes, {last['stores']} chunks stored in place,"
            f" {last['writes']} writes posted, {last['immediates']} immediates"
        )

    print()
    show_formats(options.rounds)


if __name__ == "__main__":
    main()
