# SPDX-License-Identifier: Apache-2.0
"""The rank of this process among the trainers, and their number."""

from __future__ import annotations

import os


def rank_here() -> int:
    """Returns torch.distributed's rank, else the environment's RANK, else 0."""
    return _ask("get_rank", "RANK", 0)


def world_here() -> int:
    """Returns torch.distributed's world size, else the environment's WORLD_SIZE, else 1."""
    return _ask("get_world_size", "WORLD_SIZE", 1)


def _ask(function: str, variable: str, otherwise: int) -> int:
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

    if dist.is_available() and dist.is_initialized():
        return int(getattr(dist, function)())
    return int(os.environ.get(variable, otherwise))
