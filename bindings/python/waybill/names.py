# SPDX-License-Identifier: Apache-2.0
"""Names of tensors, for errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Prefixes that are no part of an engine's names: peft's for a whole module, for a layer that it adapts and for a layer
# that it trains as a whole; and that of torch.compile().
_PEFT_MODEL = "base_model.model."
_WRAPPERS = ("_orig_mod.", "base_layer.", "modules_to_save.default.")
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


def engine_name(key: str) -> str:
    """Returns the name by which engines know a parameter of a module that was wrapped.

    >>> engine_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    if key.startswith(_PEFT_MODEL):
        key = key[len(_PEFT_MODEL) :]
    for wrapper in _WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names that are most like one that does not exist, at most two."""
    import difflib

    return difflib.get_close_matches(name, names, 2)


def quoted(names: Iterable[str]) -> str:
    """Returns names for a message: "a" and "b"."""
    return " and ".join(f'"{name}"' for name in names)
