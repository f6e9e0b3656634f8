"""What Waybill does on a GPU, as one page: kernels, copies, and updates between two processes on the first GPU.

    bazel run --config=bench //testing/gpu:report -- [--megabytes 30000] [--updates 11] [--to FILE]

Without a GPU it says so and ends with an error. The page names the GPU and its driver; it goes into kernels/README.md.
"""

import argparse
import selectors
import statistics
import subprocess
import sys
from pathlib import Path

import waybill

RANK = "testing/gpu/gpu_rank"  # Below the working directory, which is that of the runfiles.
KERNELS = "kernels/cuda/gpu_bench"
DRIVER = Path("/sys/module/nvidia/version")
LONGEST_SECONDS = 130  # A publish gives up after 120.


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"report: {' '.join(command)} has ended with {done.returncode}")
    return done.stdout


def copies(megabytes):
    """The GPU's name, and the rates of its own copies in GB/s: lists by kind."""
    first, *lines = run(RANK, "copies", str(megabytes)).splitlines()
    rates = {}
    for kind, rate in map(str.split, lines):
        rates.setdefault(kind, []).append(float(rate))
    return first.removeprefix("gpu "), rates


class Rank:
    def __init__(self, *arguments):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [RANK, *arguments], stdin=pipe, stdout=pipe, text=True, bufsize=1
        )

    def tell(self, what):
        self.process.stdin.write(f"{what}\n")

    def heard(self):
        """The words of its next line."""
        return self.process.stdout.readline().split()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(60) != 0:
            sys.exit(f"report: {' '.join(self.process.args)} has failed")

    def stop(self):
        self.process.kill()
        self.process.wait()


def expect(words):
    """What follows the word in the next line of each rank. `words`: a word for each rank."""
    heard = {}
    with selectors.DefaultSelector() as selector:
        for rank in words:
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        while len(heard) < len(words):
            ready = selector.select(LONGEST_SECONDS)
            for key, _ in ready:
                rank, line = key.data, key.data.heard()
                if line[:1] != [words[rank]]:
                    sys.exit(
                        f"report: {' '.join(rank.process.args)}: {line}, expected {words[rank]!r}"
                    )
                heard[rank] = line[1:]
                selector.unregister(key.fileobj)
            if not ready:
                sys.exit(f"report: {words.values()} was not said within {LONGEST_SECONDS} s")
    return [heard[rank] for rank in words]


def updates(fabric, megabytes, count):
    """The rates of updates from one process to another in GB/s, from publish to shown."""
    with waybill.Controller(listen="127.0.0.1:0") as controller:
        worker, trainer = (
            Rank(role, controller.address, fabric, str(megabytes)) for role in ("worker", "trainer")
        )
        try:
            expect({worker: "joined", trainer: "joined"})
            rates = []
            for version in range(1, count + 2):
                trainer.tell(version)
                (shown,), (begun,) = expect({worker: "shown", trainer: "published"})
                rates.append(megabytes * 1e6 / (int(shown) - int(begun)))
            trainer.end()
            worker.end()
        finally:
            for rank in (worker, trainer):
                rank.stop()
        return rates[1:]  # The first one opens what it reads.


def row(name, rates, bound, bound_name, target=None):
    middle = statistics.median(rates)
    of = f"{middle / statistics.median(bound):.2f} of {bound_name}" if bound else ""
    if target:
        of += f" (target {target})"
    return f"| {name} | {middle:.1f} [{min(rates):.1f}, {max(rates):.1f}] | {of} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=30_000, help="of weights in an update")
    parser.add_argument("--updates", type=int, default=11, help="how often each is measured")
    parser.add_argument("--to", help="also write the page to this file")
    parser.add_argument("--no-kernels", action="store_true", help="leave the kernels out")
    arguments = parser.parse_args()

    gpu, rates = copies(min(arguments.megabytes, 4_000))
    driver = DRIVER.read_text().strip() if DRIVER.exists() else "unknown"
    local = updates("local", arguments.megabytes, arguments.updates)
    tcp = updates("tcp", min(arguments.megabytes, 4_000), arguments.updates)
    page = [
        f"{gpu}, driver {driver}",
        "",
        f"Median and range, GB/s of weights; updates of {arguments.megabytes} MB with digests, from publish to shown.",
        "",
        "| | GB/s | |",
        "|---|---|---|",
        row("copy within the GPU", rates["within"], None, ""),
        row("copy to pinned host memory", rates["to-host"], None, ""),
        row("copy from pinned host memory", rates["from-host"], None, ""),
        row("update between two processes, local", local, rates["within"], "the copy", 0.6),
        row("the same, staged over tcp", tcp, rates["to-host"], "the copy to the host"),
    ]
    if not arguments.no_kernels:
        page += ["", "```", run(KERNELS).strip(), "```"]
    text = "\n".join(page) + "\n"
    print(text, end="")
    if arguments.to:
        with open(arguments.to, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
