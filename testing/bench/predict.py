# SPDX-License-Identifier: Apache-2.0
"""Compares predictions of `waybill simulate` with updates of the demo on this machine.

    bazel run -c opt //testing/bench:predict

The rates of the model are measured apart from the demo, in the same minutes: copies, digests,
transposes, casts, quantising and comparing by the kernels' benchmarks, two at a time as the demo's ranks; TCP
by as many processes and lanes as the demo has, with long and with short writes; the controller by
an update of one tensor of 4 KiB. Nothing is fitted to the demo. Each round measures the rates, and
then runs each demo. Other work on the machine slows both down, but not evenly: compare the medians
of several rounds, and run it on a machine that is idle if you can. Options: --rounds, --versions,
--json.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from statistics import median

HERE = os.path.join(os.environ.get("RUNFILES_DIR", "."), "waybill")

CONFIGURATIONS = [
    # name, model, layers, trainers, workers, format, dtype, images, changed
    ("gpt2, transposed", "gpt2", None, "fsdp=2", "tp=2", "", "", False, None),
    ("qwen3-0.6b", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "", "", False, None),
    ("qwen3-0.6b, 4 to 2 replicas", "qwen3-0.6b", 8, "fsdp=4", "dp=2", "", "", False, None),
    ("qwen3-0.6b, block FP8", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "fp8-block", "", False, None),
    ("qwen3-0.6b, cast to F32", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "", "F32", False, None),
    ("qwen3-0.6b, images", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "", "", True, None),
    ("qwen3-0.6b, 1 % changed", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "", "", True, 0.01),
    ("qwen3-0.6b, 10 % changed", "qwen3-0.6b", 8, "fsdp=2", "tp=2", "", "", True, 0.1),
]

# What each rate of the model is measured by. A benchmark's bytes are those that it reads.
KERNELS = {
    "copy": "BM_CopyDigest/streaming/268435456",
    "transpose": "BM_TransposePieces/digest/3072/384/4",
    "cast": "BM_Cast/bf16_to_f32/268435456",
    "digest": "BM_Digest/268435456",
}
QUANTISE = "BM_QuantiseBlocks/(avx512|avx2)_digest"


def ranks_of(configuration):
    """Its trainers and its workers."""
    return tuple(int(sharding.split("=")[1]) for sharding in configuration[3:5])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def program(path):
    return path if os.path.exists(path) else os.path.join(HERE, path)


def bench(binary, pattern):
    """Bytes per second of a benchmark, while a second one runs: the mean of both."""
    command = [program(binary), f"--benchmark_filter=^{pattern}$", "--benchmark_format=json"]
    pair = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    rates = []
    for process in pair:
        # The fastest kernel is the one that Waybill chooses.
        found = json.loads(process.communicate()[0])["benchmarks"]
        rates.append(max(b["bytes_per_second"] * b["cpu_time"] / b["real_time"] for b in found))
    return sum(rates) / 2


def compare_rate():
    """Bytes per second of one version at which two that are equal are compared, while a second process does so."""
    pair = [
        subprocess.Popen(program("core/change/change_bench"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    # Name, size, its part of the bound, and the rates of reading and of finding what changed.
    rows = [next(row for row in p.stdout if row.startswith("unchanged")).split() for p in pair]
    for process in pair:
        process.kill()
        process.wait()
    return sum(1e9 * float(row[4]) for row in rows) / 2


def measure_rates():
    rates = {"compare": compare_rate()}
    rates |= {name: bench("kernels/kernels_bench", pattern) for name, pattern in KERNELS.items()}
    rates["quantise"] = bench("kernels/quantise_bench", QUANTISE)
    return rates


def measure_tcp(senders, receivers, write_kib=0):
    """Seconds that a sending and a receiving thread take for a byte, together.

    As many processes as in the demo send and receive, with a lane between each two. What a sender
    sends lies in memory once, as tensors do. By the clock, since the kernel's part of a transfer is
    in no process's processor time.
    """
    command = [program("testing/bench/fabric_transfer"), "--fabric", "tcp", "--rounds", "6"]
    command += ["--senders", str(senders), "--receivers", str(receivers)]
    command += ["--mib", "256", "--ring-mib", "256", "--write-kib", str(write_kib)]
    done = run(*command)
    rate = senders * done["bytes"] / median(r["seconds"] for r in done["rounds"][1:])
    return min(os.cpu_count(), senders + receivers) / rate


def measure_network():
    """What TCP takes for a byte, for each number of trainers and workers, and for a write."""
    seconds = {ranks: measure_tcp(*ranks) for ranks in {ranks_of(c) for c in CONFIGURATIONS}}
    short = 4
    write = (measure_tcp(2, 2, short) - seconds[2, 2]) * (short << 10)
    return seconds, max(write, 0)


def waybill(*arguments):
    return run(program("tools/waybill/waybill"), *arguments)


def measure_control(folder):
    """Seconds of an update that moves 4 KiB."""
    data = bytes(range(256)) * 16
    header = json.dumps({"w": {"dtype": "BF16", "shape": [32, 64], "data_offsets": [0, len(data)]}})
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header.encode() + data)
    return waybill(
        "demo", "--checkpoint", folder, "--versions", "15", "--no-check", "--no-bound", "--json"
    )["median_seconds"]  # fmt: skip


def describe(configuration, fabric, rates, network, control):
    tcp, write = network
    # Both ends take about the same.
    tcp_gb_per_second = 2 / tcp[ranks_of(configuration)] / 1e9
    _, model, layers, trainers, workers, form, dtype, images, changed = configuration
    machine = {
        "memory": "host",
        "ranks_per_host": 8,
        "nics_per_host": 0,
        "cores": os.cpu_count(),
        "rates_gb_per_second": {name: rate / 1e9 for name, rate in rates.items()},
    }
    described = {
        "model": {"name": model} | ({"layers": layers} if layers else {}),
        "trainers": machine | {"sharding": trainers},
        "workers": machine | {"sharding": workers},
        "network": {
            "one_host": True,
            "tcp": fabric == "tcp",
            "tcp_send_gb_per_second": tcp_gb_per_second,
            "tcp_receive_gb_per_second": tcp_gb_per_second,
            "post_ns": write / 2 * 1e9,
        },
        # Six messages one after another, of which the disk is a part.
        "control": {"message_us": control * 1e6 / 6, "record_ms": 0},
    }
    described["images"] = images
    if changed is not None:
        described["changed"] = changed
    if form:
        described["workers"]["format"] = form
    if dtype:
        described["workers"]["dtype"] = dtype
    return described


def demo(configuration, fabric, versions):
    _, model, layers, trainers, workers, form, dtype, images, changed = configuration
    options = ["--model", model, "--trainers", trainers, "--workers", workers, "--fabric", fabric]
    for name, value in (("--layers", layers), ("--format", form), ("--dtype", dtype)):
        options += [name, str(value)] if value else []
    options += ["--images"] if images else []
    options += ["--changes", "always", "--changed", str(changed)] if changed is not None else []
    report = waybill(
        "demo", "--json", "--no-check", "--no-bound", "--versions", str(versions), *options
    )  # fmt: skip
    # The first version makes pages and caches warm.
    return [update["seconds"] for update in report["updates"][1:]]


def predict(described, folder):
    path = os.path.join(folder, "cluster.yaml")
    with open(path, "w") as out:
        json.dump(described, out)  # JSON is YAML.
    return waybill("simulate", path, "--json")["seconds"]


def measure_all(rounds, versions):
    """{(configuration, fabric): (predictions, updates)}, in seconds."""
    found = {(c, fabric): ([], []) for fabric in ("local", "tcp") for c in CONFIGURATIONS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            measured = measure_rates(), measure_network(), measure_control(folder)
            for (configuration, fabric), (predictions, updates) in found.items():
                predictions.append(predict(describe(configuration, fabric, *measured), folder))
                updates += demo(configuration, fabric, versions)
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="demos for each row (default 3)")
    parser.add_argument("--versions", type=int, default=9, help="updates of a demo (default 9)")
    parser.add_argument("--json", action="store_true", help="print what was measured, for programs")
    options = parser.parse_args()

    with open("/proc/sys/net/ipv4/tcp_congestion_control") as name:
        tcp = f"TCP by {name.read().strip()}"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {tcp}", file=sys.stderr)
    rows = [
        {
            "configuration": configuration[0],
            "fabric": fabric,
            "predicted_seconds": median(predictions),
            "median_seconds": median(updates),
            "fastest_seconds": min(updates),
        }
        for (configuration, fabric), (predictions, updates) in measure_all(
            options.rounds, options.versions
        ).items()
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'configuration':<30}{'fabric':<8}{'predicted ms':>13}{'median':>9}{'off by':>8}{'fastest':>9}"
    )
    for row in rows:
        predicted, measured = row["predicted_seconds"], row["median_seconds"]
        print(
            f"{row['configuration']:<30}{row['fabric']:<8}{1e3 * predicted:>13.1f}"
            f"{1e3 * measured:>9.1f}{100 * (predicted / measured - 1):>+7.0f}%"
            f"{1e3 * row['fastest_seconds']:>9.1f}"
        )


if __name__ == "__main__":
    main()
