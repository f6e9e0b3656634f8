"""Passes the library's log to the logger "waybill": how ranks have joined, and that a controller is lost.

Nothing is printed unless the program configures logging.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_WARNING = 2  # The C ABI's.

_logger: logging.Logger | None = None


def take(level: int, line: str) -> None:
    """Logs a line, on any thread, also on the library's. What handlers and filters raise ends here."""
    global _logger
    if _logger is None:
        module = sys.modules.get("logging")
        if module is None:
            return  # Nobody has configured what nobody has imported.
        _logger = module.getLogger("waybill")
        _logger.addHandler(module.NullHandler())  # Else warnings would go to stderr.
    # INFO and WARNING of logging.
    _logger.log(30 if level >= _WARNING else 20, line)
