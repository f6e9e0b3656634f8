#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes compile_commands.json, for editors, from what Bazel would run.

usage: tools/compile_commands.py [PATTERN] [BAZEL-OPTION...]
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUIET = ["--noshow_progress", "--ui_event_filters=-info"]


def bazel(command, *arguments):
    return subprocess.run(
        ["bazel", command, *QUIET, *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def main():
    pattern, options = "//...", []
    for argument in sys.argv[1:]:
        if argument.startswith("-"):
            options.append(argument)
        else:
            pattern = argument
    # The execution root holds links to the sources of the last build only: run from the checkout,
    # with all else by absolute path.
    elsewhere = {
        "bazel-out/": bazel("info", *options, "execution_root").strip(),
        "external/": bazel("info", *options, "output_base").strip(),
    }

    def absolute(argument):
        for flag in ("-I", "-iquote", "-isystem", ""):
            rest = argument[len(flag) :]
            for prefix, folder in elsewhere.items():
                if argument.startswith(flag) and rest.startswith(prefix):
                    return f"{flag}{folder}/{rest}"
        return argument

    actions = json.loads(
        bazel(
            "aquery",
            "--output=jsonproto",
            "--include_artifacts=false",
            *options,
            f'mnemonic("^CppCompile$", {pattern})',
        )
    ).get("actions", [])
    entries = {}
    for action in actions:
        arguments = action["arguments"]
        # Assembler has no -c; what the tools' own configuration compiles comes second.
        if "-c" not in arguments:
            continue
        source = arguments[arguments.index("-c") + 1]
        for_tools = "-exec-" in " ".join(arguments)
        if source.startswith("external/") or (source in entries and for_tools):
            continue
        entries[source] = {
            "arguments": [absolute(a) for a in arguments],
            "directory": str(ROOT),
            "file": absolute(source),
        }
    Path(ROOT, "compile_commands.json").write_text(
        json.dumps([entries[source] for source in sorted(entries)], indent=1) + "\n"
    )
    print(f"compile_commands.json: {len(entries)} files")


if __name__ == "__main__":
    main()
