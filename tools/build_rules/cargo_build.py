# SPDX-License-Identifier: Apache-2.0
"""Builds examples of a crate, offline, as cargo_programs asks for.

usage: cargo_build.py --cargo FILE --manifest FILE --vendor TAR --sdk TARBALL --run-path PATH OUT...

Each OUT is called as its example.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

from tools.build_rules.cargo_main import environment_of, lay_out
from tools.build_rules.kept_folder import checksum, kept_folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cargo", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--vendor", type=Path)
    parser.add_argument("--sdk", type=Path)
    parser.add_argument("--run-path")
    parser.add_argument("outs", type=Path, nargs="+")
    arguments = parser.parse_args()
    cargo = arguments.cargo.resolve()
    version = subprocess.check_output([cargo, "--version"], text=True)
    with kept_folder(f"cargo-{checksum(version, arguments.vendor)}") as kept:
        lay_out(kept, arguments.manifest.parent, arguments.sdk, arguments.vendor)
        for out in arguments.outs:
            run_path = f"link-arg=-Wl,-rpath,{arguments.run_path}"
            subprocess.run(
                [
                    cargo,
                    "rustc",
                    "--quiet",
                    "--frozen",
                    "--example",
                    out.name,
                    "--",
                    "-C",
                    run_path,
                ],
                cwd=kept / "crate",
                env=environment_of(cargo, kept, kept / "sdk"),
                check=True,
            )
            shutil.copy(kept / "target/debug/examples" / out.name, out)


if __name__ == "__main__":
    main()
