# SPDX-License-Identifier: Apache-2.0
"""Passes the library's log to the logger "waybill": how ranks have joined, and that a controller is lost.

Unless the program configures logging, warnings go to standard error, as logging has it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_WARNING = 2  # The C ABI's.

_logger: logging.Logger | None = None


def warn(line: str) -> None:
    """Logs a warning of the binding."""
    take(_WARNING, line)


def take(level: int, line: str) -> None:
    """Logs a line, on any thread, also on the library's. What handlers and filters raise ends here."""
    global _logger
    if _logger is None:
        module = sys.modules.get("logging")
        if module is None:  # Nobody has configured what nobody has imported.
            if level >= _WARNING:
                sys.stderr.write(f"waybill: {line}\n")
            return
        _logger = module.getLogger("waybill")
    # INFO and WARNING of logging.
    _logger.log(30 if level >= _WARNING else 20, line)
