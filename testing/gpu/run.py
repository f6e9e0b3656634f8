# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the bundle, and writes what they found to DIR/report.md and DIR/report.json.

usage: ./run --to DIR [--only STEP,...] [--seconds N] [--small]

The report is written after each row: what was found so far survives the end of this program. It ends with 1 if
a check has failed.
"""

import argparse
import json
import os
import platform
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from steps import checks

HERE = Path(__file__).resolve().parent

# Each step, and its share of the time; it also gets what earlier ones have left.
SHARES = {
    "survey": 25,
    "kernels": 75,
    "rates": 35,
    "updates": 50,
    "processes": 80,
    "torch": 60,
    "faults": 35,
}
WHAT_GPUS_SAY = (
    "name,driver_version,memory.total,compute_mode,mig.mode.current,ecc.mode.current,persistence_mode,"
    "clocks.current.sm,clocks.max.sm,clocks.current.memory,clocks.max.memory,power.limit,temperature.gpu"
)


class Report:
    """What was found so far."""

    def __init__(self, folder):
        self.folder = folder
        self.machine = {}
        self.steps = {}

    def begin(self, step):
        self.steps[step] = {"seconds": None, "rows": [], "facts": []}
        self.write()

    def add(self, step, kind, name, text):
        entry = self.steps[step]
        if kind == "fact":
            entry["facts"].append({"name": name, "value": text})
        else:
            entry["rows"].append({"check": name, "result": kind, "detail": text})
        self.write()

    def end(self, step, seconds):
        self.steps[step]["seconds"] = round(seconds, 1)
        self.write()

    def count(self, result):
        return sum(row["result"] == result for step in self.steps.values() for row in step["rows"])

    def total(self):
        return ", ".join(
            f"{self.count(result)} {result}" for result in ("passed", "failed", "skipped")
        )

    def write(self):
        everything = {"machine": self.machine, "steps": self.steps}
        self._replace("report.json", json.dumps(everything, indent=1) + "\n")
        self._replace("report.md", self._page())

    def _replace(self, name, text):
        new = self.folder / f".{name}"
        new.write_text(text, encoding="utf-8")
        new.replace(self.folder / name)

    def _page(self):
        lines = ["# Waybill on a GPU", "", f"{self.total()}.", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {cell(value)} |" for name, value in self.machine.items()]
        for name, step in self.steps.items():
            took = "not ended" if step["seconds"] is None else f"{step['seconds']} s"
            lines += ["", f"## {name} ({took})", ""]
            if step["rows"]:
                lines += ["| check | result | |", "|---|---|---|"]
            for row in step["rows"]:
                lines.append(
                    f"| {cell(row['check'])} | {row['result']} | {cell(first(row['detail']))} |"
                )
            for row in step["rows"]:
                if row["result"] == "failed":
                    lines += ["", f"{row['check']} failed:", "", "```", row["detail"], "```"]
            if step["facts"]:
                lines += ["", "| found | |", "|---|---|"]
            lines += [f"| {cell(f['name'])} | {shortened(f['value'])} |" for f in step["facts"]]
        return "\n".join(lines) + "\n"


def first(text):
    return text.strip().splitlines()[0] if text.strip() else ""


def shortened(text):
    """Its first line; all of them are in report.json."""
    more = len(str(text).strip().splitlines()) - 1
    return cell(first(str(text))) + (f" ... ({more} more lines)" if more > 0 else "")


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", "<br>")


def said_by(*command):
    """The output of a command, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}"
    return done.stdout.strip() or f"not known: {done.stderr.strip()}"


def describe_machine(torch):
    version = Path("/proc/driver/nvidia/version")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    wheel = next(HERE.glob("waybill-*.whl")).name
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "GPU": said_by("nvidia-smi", f"--query-gpu={WHAT_GPUS_SAY}", "--format=csv"),
        "driver": first(version.read_text())
        if version.exists()
        else "no /proc/driver/nvidia/version",
        "kernel": platform.release(),
        "C library": " ".join(platform.libc_ver()),
        "Python": platform.python_version(),
        "torch": torch,
        "processors, memory": f"{len(os.sched_getaffinity(0))}, {memory / 1e9:.0f} GB",
        "Waybill": wheel,
    }


def unpack(work):
    """Puts the programs and the wheel where files may be executed."""
    with zipfile.ZipFile(HERE / "programs.zip") as programs:
        programs.extractall(work)
    with zipfile.ZipFile(next(HERE.glob("waybill-*.whl"))) as wheel:
        wheel.extractall(work / "python")
    for file in [*(work / "programs").iterdir(), *(work / "python/waybill/bin").iterdir()]:
        file.chmod(0o755)


def has_library(name):
    code = f"import ctypes; ctypes.CDLL({name!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def environment(work, small):
    env = {
        **os.environ,
        "BUNDLE_PROGRAMS": str(work / "programs"),
        "BUNDLE_SMALL": "1" if small else "",
        "XDG_STATE_HOME": str(work / "state"),  # For the token of the jobs.
    }
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(work / "python"), env.get("PYTHONPATH")]))
    env["PYTHONUNBUFFERED"] = "1"
    folders = [env.get("LD_LIBRARY_PATH", "")]
    for library in (work / "runtime").iterdir():
        if has_library(library.name):
            library.unlink()  # The machine's own is for whatever else is on it, such as torch.
    folders.append(str(work / "runtime"))
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, dict.fromkeys(folders)))
    return env


def take(report, step, line):
    """Adds a line of a step to the report. Returns false if it is none of its rows."""
    try:
        kind, name, text = json.loads(line)
    except ValueError:
        return False
    report.add(step, kind, name, text)
    if kind != "fact":
        print(f"{step}: {name}: {kind}{': ' + first(text) if text else ''}", flush=True)
    return True


def run_step(report, step, seconds, env):
    """Runs one step, with all that it starts, for at most that time."""
    report.begin(step)
    begin = time.monotonic()
    other = []  # What it says apart from rows.
    process = checks.start(
        [sys.executable, HERE / "steps" / f"check_{step}.py"],
        # A step gets to know of its end, and says what it had no time for.
        env={**env, "BUNDLE_SECONDS": f"{max(1.0, seconds - 2):.1f}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    buffer, in_time = b"", True
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while in_time:
                in_time = bool(selector.select(max(0.0, begin + seconds - time.monotonic())))
                data = os.read(process.stdout.fileno(), 1 << 16) if in_time else b""
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    text = line.decode(errors="replace")
                    if not take(report, step, text):
                        other.append(text)
                if in_time and not data:
                    break
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # Also what it has left behind.
            except ProcessLookupError:
                pass
            process.wait()
    if not in_time:
        report.add(
            step,
            "failed",
            f"{step}, as a whole",
            f"it did not end within {seconds:.0f} s\n" + "\n".join(other[-30:]),
        )
    elif process.returncode != 0:
        report.add(
            step,
            "failed",
            f"{step}, as a whole",
            f"it has ended with {process.returncode}\n" + "\n".join(other[-30:]),
        )
    report.end(step, time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="where the report goes"
    )
    parser.add_argument(
        "--only", default=",".join(SHARES), metavar="STEP,...", help=f"of {', '.join(SHARES)}"
    )
    parser.add_argument(
        "--seconds", type=float, default=350, help="for all steps together; default: 350"
    )
    parser.add_argument(
        "--small", action="store_true", help="as little data as possible, for simulated GPUs"
    )
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := [step for step in chosen if step not in SHARES]:
        parser.error(f"no step {unknown[0]!r}; there are {', '.join(SHARES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run: terminated"))

    arguments.to.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    report = Report(arguments.to)
    total = sum(SHARES[step] for step in chosen)
    with tempfile.TemporaryDirectory(prefix="waybill-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        unpack(work)
        env = environment(work, arguments.small)
        torch = said_by(
            sys.executable,
            "-c",
            "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)",
        )
        report.machine = describe_machine(first(torch.splitlines()[-1]))
        spent = 0
        for step in chosen:
            spent += SHARES[step]
            ends = begin + arguments.seconds * spent / total
            run_step(report, step, max(1.0, ends - time.monotonic()), env)
    report.machine["time"] = f"{time.monotonic() - begin:.0f} s"
    report.machine["GPU afterwards"] = said_by(
        "nvidia-smi", f"--query-gpu={WHAT_GPUS_SAY}", "--format=csv"
    )
    report.write()
    print(f"{report.total()}; the report is {arguments.to / 'report.md'}")
    return 1 if report.count("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
