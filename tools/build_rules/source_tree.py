# SPDX-License-Identifier: Apache-2.0
"""The files of the checkout, as tools/format and the presubmit look at them."""

import subprocess
from pathlib import Path


def source_files(root):
    """Paths, relative to `root`, of all that git knows or would add; no golden files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = sorted({name for name in listed.split("\0") if name and "/golden/" not in name})
    return [name for name in names if Path(root, name).is_file()]
