# SPDX-License-Identifier: Apache-2.0
"""Checks that a C++ target includes only headers of its own and of its direct dependencies.

usage: layers.py LABEL STAMP HEADERS SOURCE...

HEADERS lists the headers that may be included, a path a line. Paths outside this repository are not checked: a
distribution's headers are all in one folder. Nor are includes between #if, or #ifdef, and #endif, because the condition
is not known here. Writes STAMP if everything is right.
"""

import re
import sys
from pathlib import Path

DIRECTIVE = re.compile(r'^\s*#\s*(include|if|ifdef|ifndef|endif)\b(?:\s+"([^"]+)")?', re.M)
OURS = ("bindings/", "capi/", "core/", "examples/", "kernels/", "testing/", "tools/")


def wrong_includes(text, allowed):
    """Returns the includes of this repository's headers that are not allowed."""
    wrong, blocks = [], []
    for directive, path in DIRECTIVE.findall(text):
        if directive == "endif":
            blocks.pop()
        elif directive != "include":
            blocks.append(directive)
        elif (
            path.startswith(OURS)
            and path.endswith(".h")
            and path not in allowed
            and set(blocks) <= {"ifndef"}
        ):
            wrong.append(path)  # Include guards are the only #ifndef around includes.
    return wrong


def main(label, stamp, headers, *sources):
    allowed = set(Path(headers).read_text().split())
    wrong = [
        f"{source}: includes {path}, which no direct dependency of {label} has: add its target to deps"
        for source in sources
        for path in wrong_includes(Path(source).read_text(), allowed)
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    Path(stamp).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
