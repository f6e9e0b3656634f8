# SPDX-License-Identifier: Apache-2.0
"""Builds programs of a Go module, offline, as go_programs asks for.

usage: go_build.py --go FILE --module DIR [--package DIR]... --sdk TARBALL --run-path PATH OUT...

There is one OUT for each package, and called as it is.
"""

import argparse
import subprocess
from pathlib import Path

from tools.build_rules.go_main import environment_of, lay_out
from tools.build_rules.kept_folder import checksum, kept_folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--go", type=Path)
    parser.add_argument("--module", type=Path)
    parser.add_argument("--package", action="append")
    parser.add_argument("--sdk", type=Path)
    parser.add_argument("--run-path")
    parser.add_argument("outs", type=Path, nargs="+")
    arguments = parser.parse_args()
    go = arguments.go
    version = subprocess.check_output([go, "version"], env={"HOME": "/nonexistent"}, text=True)
    with kept_folder(f"go-{checksum(version)}") as kept:
        sdk = lay_out(kept, arguments.module, arguments.sdk)
        environment = environment_of(go, kept, sdk)
        environment["CGO_LDFLAGS"] = f"-L{sdk}/lib -Wl,-rpath,{arguments.run_path}"
        packages = [f"./{package}" for package in arguments.package]
        folder = arguments.outs[0].resolve().parent
        subprocess.run(
            [go, "build", "-o", f"{folder}/", *packages],
            cwd=kept / "module",
            env=environment,
            check=True,
        )


if __name__ == "__main__":
    main()
