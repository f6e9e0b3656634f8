# SPDX-License-Identifier: Apache-2.0
"""What each kernel moves, as a fraction of the device's own copy in the same run."""

import contextlib
import json
import subprocess

import checks

CLOCKS = "clocks.current.sm,clocks.current.memory,power.draw,temperature.gpu"


@contextlib.contextmanager
def clocks_told(name):
    """Adds what nvidia-smi says of the clocks meanwhile."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader", "-lms", "300"]
    try:
        process = checks.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        yield  # There is no nvidia-smi.
        return
    try:
        yield
    finally:
        process.kill()
        said = process.communicate()[0].splitlines()
        checks.fact(f"{name}: {CLOCKS}", "; ".join(dict.fromkeys(said[-12:])))


def main():
    for mebibytes in (1,) if checks.SMALL else (1, 64, 4096):
        seconds = checks.seconds_left(25)
        if seconds < 2:
            checks.skipped(f"{mebibytes} MiB", "no time was left")
            continue
        once = ["--once"] if checks.SMALL else []
        with clocks_told(f"{mebibytes} MiB"):
            command = [checks.PROGRAMS / "gpu_bench", "--json", *once, mebibytes]
            status, output = checks.run(command, seconds)
        rows = []
        for line in output.splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        for row in rows:
            target = f" (target {row['target']})" if row["target"] else ""
            checks.fact(
                f"{mebibytes} MiB: {row['name']}",
                f"{row['median']} GB/s [{row['least']}, {row['most']}], {row['of_copy']} of the copy{target}",
            )
        if status == 0:
            checks.passed(f"{mebibytes} MiB", f"{len(rows)} rates")
        else:
            said = output.strip().splitlines()[-1:]
            checks.failed(f"{mebibytes} MiB", f"{checks.ended(status, seconds)}: {said}\n{output}")


main()
