"""Names of tensors, for errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# torch.compile() puts it into the names of a module's parameters.
COMPILED = "_orig_mod."
_PARALLEL = ("DataParallel", "DistributedDataParallel")


def unwrapped(module: Any) -> Any:
    """Returns the module that torch.compile() and torch's data parallelism were given, whose names engines know."""
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif type(module).__name__ in _PARALLEL:
            module = module.module
        else:
            return module


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names that are most like one that does not exist, at most two."""
    import difflib

    return difflib.get_close_matches(name, names, 2)


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message: "a" and "b"."""
    return " and ".join(f'"{name}"' for name in names)
