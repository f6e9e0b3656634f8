"""What each kernel moves, as a fraction of the device's own copy in the same run."""

import json

import checks


def main():
    for mebibytes in (1,) if checks.SMALL else (1, 64, 4096):
        seconds = checks.seconds_left(25)
        command = [
            checks.PROGRAMS / "gpu_bench",
            "--json",
            *(["--once"] if checks.SMALL else []),
            mebibytes,
        ]
        status, output = checks.run(command, seconds)
        rows = []
        for line in output.splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                pass
        for row in rows:
            target = f" (target {row['target']})" if row["target"] else ""
            checks.fact(
                f"{mebibytes} MiB: {row['name']}",
                f"{row['median']} GB/s [{row['least']}, {row['most']}], {row['of_copy']} of the copy{target}",
            )
        if status == 0:
            checks.passed(f"{mebibytes} MiB", f"{len(rows)} rates")
        else:
            checks.failed(f"{mebibytes} MiB", f"{checks.ended(status, seconds)}\n{output}")


main()
