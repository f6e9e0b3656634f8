# SPDX-License-Identifier: Apache-2.0
"""The context that all objects of this process share, and the defaults of their arguments."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from waybill import _waybill, logs
from waybill.errors import InvalidArgument

FABRICS = ("auto", "local", "verbs", "tcp")

_context: _waybill.Context | None = None


def context() -> _waybill.Context:
    """Returns this process's context, and makes it when it is first needed. The C ABI refuses it in a fork."""
    global _context
    if _context is None:
        _context = _waybill.Context(logs.take)
    return _context


def read_json(text: str) -> Any:
    """Reads JSON of the library; json is imported when it is first needed."""
    import json

    return json.loads(text)


def describe() -> str:
    """Returns the version and, as JSON, which fabrics and GPUs this host has, or why they are not usable."""
    return context().describe()


def token_or_default(token: str | None) -> str:
    """Returns the given token, or WAYBILL_TOKEN if it is None."""
    return os.environ.get("WAYBILL_TOKEN", "") if token is None else token


def _number(name: str, by_default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return by_default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name} is {text!r} in the environment, and no number") from None


def world_or_default(world: int | None) -> int:
    """Returns the given number of ranks, or if it is None that of torchrun's environment, or 1."""
    return _number("WORLD_SIZE", 1) if world is None else world


def rank_or_default(rank: int | None, world: int | None) -> int:
    """Returns the given rank, or if it is None that of torchrun's environment, or any rank of a larger world."""
    if rank is not None:
        return rank
    return _number("RANK", 0 if world_or_default(world) == 1 else _waybill.ANY_RANK)


def one_of(names: Collection[str], option: str, value: str) -> str:
    """Returns `value` if it is one of `names`. Otherwise raises InvalidArgument, with the name of the option."""
    if value not in names:
        raise InvalidArgument(f"{option} {value!r} is none of {', '.join(names)}")
    return value


def checked_fabric(fabric: str) -> str:
    """Returns the name of a fabric. Raises InvalidArgument if the name is unknown."""
    return one_of(FABRICS, "fabric", fabric)
