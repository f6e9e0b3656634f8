# SPDX-License-Identifier: Apache-2.0
"""The update of testing/bench:update, driven from Python, beside the same driven from C++.

    bazel run -c opt //testing/bench:python_update [-- --pairs 20 --fabric tcp]

Both jobs are there at once, idle but for their turns: 2 trainers to 2 workers in shadow mode, over shared
memory if --fabric names no other network, Qwen3-0.6B's shapes. Prints the median of the ratios of pairs, from first publish to last shown.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import waybill

WORLD = 2


class Ranks:
    """Processes that read commands and write lines."""

    def __init__(self, commands):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.processes = [subprocess.Popen(command, **pipes) for command in commands]

    def say(self, line):
        for process in self.processes:
            process.stdin.write(line + "\n")

    def expect(self, word):
        """The rest of each one's next line that begins with `word`."""
        rests = []
        for process in self.processes:
            for line in process.stdout:
                if line.split()[:1] == [word]:
                    rests.append(line.split()[1:])
                    break
            else:
                sys.exit(f"{process.args}: ended without {word!r}")
        return rests

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.terminate()
            process.wait()


class Job:
    """A controller, trainers and workers, all driven the same way.

    start  The command of a rank.
    more   What follows the role, the controller's address, the rank and the world on its command line.
    """

    def __init__(self, start, more, trainers=WORLD, workers=WORLD):
        self.controller = waybill.Controller(listen="127.0.0.1:0")
        address = self.controller.address
        self.workers, self.trainers = (
            Ranks([[*start, role, address, str(rank), str(world), *more] for rank in range(world)])
            for role, world in (("worker", workers), ("trainer", trainers))
        )
        for ranks in (self.workers, self.trainers):
            ranks.expect("joined")

    def update(self, version):
        """Seconds from the first publish to the last worker's showing it."""
        for ranks in (self.workers, self.trainers):
            ranks.say(str(version))
        begins = [int(rest[0]) for rest in self.trainers.expect("published")]
        shown = [int(rest[0]) for rest in self.workers.expect("shown")]
        return (max(shown) - min(begins)) / 1e9

    def end(self):
        for ranks in (self.trainers, self.workers):
            ranks.end()
        self.controller.close()


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--fabric", default="local")
    options = parser.parse_args()
    folder = os.path.dirname(os.path.abspath(__file__))
    words = {
        "C++": [os.path.join(folder, "cpp_rank")],
        "Python": [sys.executable, os.path.join(folder, "python_rank.py")],
    }
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        more = [options.model, options.fabric, "shadow"]
        jobs = {name: Job(start, more) for name, start in words.items()}
        seconds = {name: [] for name in jobs}
        for version in range(1, options.pairs + 3):
            for name, job in jobs.items():
                taken = job.update(version)
                if version > 2:  # The first two touch memory.
                    seconds[name].append(taken)
        for job in jobs.values():
            job.end()
    ratios = [p / c for p, c in zip(seconds["Python"], seconds["C++"], strict=True)]
    for name, values in seconds.items():
        print(
            f"{name:<8} {1e3 * median(values):8.1f} ms [{1e3 * min(values):.1f}, {1e3 * max(values):.1f}]"
        )
    print(
        f"Python over C++, median of {len(ratios)} pairs: {median(ratios):.3f} "
        f"[{min(ratios):.2f}, {max(ratios):.2f}]   target: at most 1.05"
    )


if __name__ == "__main__":
    main()
