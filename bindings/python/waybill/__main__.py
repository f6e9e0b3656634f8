# SPDX-License-Identifier: Apache-2.0
"""`python -m waybill` and the script `waybill`: the command that the package brings, unchanged."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the command."""
    command = Path(__file__).with_name("bin") / "waybill"
    if not command.exists():
        sys.exit(f"waybill: {command} is not there: the command comes with the wheel")
    os.execv(command, ["waybill", *sys.argv[1:]])


if __name__ == "__main__":
    main()
