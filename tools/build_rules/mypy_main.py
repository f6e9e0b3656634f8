# SPDX-License-Identifier: Apache-2.0
"""The main program of every mypy_test: mypy_main.py PACKAGE..."""

import os
import sys

from mypy.__main__ import console_entry

if __name__ == "__main__":
    # mypy looks where the `imports` of the libraries point to, so that each file has one name only.
    workspace = os.getcwd()
    os.environ["MYPYPATH"] = ":".join(p for p in sys.path if p.startswith(workspace + os.sep))
    os.chdir(os.environ["TEST_TMPDIR"])
    packages = [word for package in sys.argv[1:] for word in ("--package", package)]
    sys.argv[1:] = ["--strict", "--no-error-summary", "--cache-dir=mypy", *packages]
    console_entry()
