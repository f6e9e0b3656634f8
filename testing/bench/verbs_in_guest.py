# SPDX-License-Identifier: Apache-2.0
"""The verbs fabric beside ib_write_bw, in the same boot: verbs.py runs this in the guest.

usage: verbs_in_guest.py FABRIC_TRANSFER WAYBILL ROUNDS DEMO(0|1)

Prints one JSON object: for each row the rates of each round, in MB/s.
"""

import json
import subprocess
import sys


def write_bw(size, count, device_pairs=(("rxe1", "rxe2"),)):
    """ib_write_bw's average column, of each pair; the pairs run at the same time."""
    servers, clients = [], []
    for index, (to, _) in enumerate(device_pairs):
        command = ["ib_write_bw", "-F", "-x", "0", "-s", str(size), "-n", str(count)]
        command += ["-p", str(18600 + index)]
        server = subprocess.Popen(
            ["stdbuf", "-oL", *command, "-d", to], stdout=subprocess.PIPE, text=True
        )
        while "Waiting" not in server.stdout.readline():
            pass
        servers.append((server, command))
    for (_, command), (_, source) in zip(servers, device_pairs, strict=True):
        clients.append(
            subprocess.Popen(
                [*command, "-d", source, "localhost"], stdout=subprocess.PIPE, text=True
            )
        )
    rates = []
    for client in clients:
        text = client.communicate()[0]
        rows = [line.split() for line in text.splitlines() if line.strip().startswith(str(size))]
        rates.append(float(rows[0][3]) * 1.048576)  # MiB/s, of 10^6 bytes.
    for server, _ in servers:
        server.communicate()
    return rates


def transfer(program, rounds, *options):
    command = [program, "--fabric", "verbs", "--nics", "rxe2,rxe1", "--rounds", str(rounds)]
    done = json.loads(subprocess.run([*command, *options], stdout=subprocess.PIPE).stdout)
    rates = [done["bytes"] / 1e6 / one["seconds"] for one in done["rounds"]]
    return rates, done["sender"]


def demo(program, *options):
    command = [program, "demo", "--json", "--fabric", "verbs", "--nodes", "rxe1;rxe2"]
    command += ["--model", "qwen3-0.6b", "--layers", "2", "--no-check", "--versions", "3"]
    report = json.loads(
        subprocess.run(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ).stdout
    )
    return [report["update_bytes"] / 1e6 / update["seconds"] for update in report["updates"]]


def main():
    program, waybill, rounds, with_demo = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    results = {"ib_write_bw 64 KiB": [], "ib_write_bw 4 KiB": []}
    bulk = ("--mib", "40", "--chunk-kib", "1024", "--ring-mib", "16")
    small = ("--mib", "8", "--chunk-kib", "256", "--write-kib", "4", "--ring-mib", "8")
    for name in ("verbs, bulk", "verbs, bulk, digests", "verbs, 4 KiB writes"):
        results[name] = []
    for _ in range(rounds):
        results["ib_write_bw 64 KiB"] += write_bw(65536, 640)
        results["verbs, bulk"] += transfer(program, 1, *bulk)[0]
        results["ib_write_bw 4 KiB"] += write_bw(4096, 2048)
        rates, counts = transfer(program, 1, *small)
        results["verbs, 4 KiB writes"] += rates
        results["counts"] = counts
        results["verbs, bulk, digests"] += transfer(program, 1, *bulk, "--digests")[0]
    if with_demo == "1":
        pairs = (("rxe1", "rxe2"), ("rxe2", "rxe1"))
        results["two ib_write_bw"] = [sum(write_bw(65536, 640, pairs)) for _ in range(3)]
        results["demo, digests off"] = demo(waybill, "--no-digests")
        results["demo, digests on"] = demo(waybill)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
