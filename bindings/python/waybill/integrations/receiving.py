# SPDX-License-Identifier: Apache-2.0
"""How an engine receives a version: as a worker of the job, in memory of its GPU, beside its weights, or of the host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from waybill.errors import FailedPrecondition, InvalidArgument, Unimplemented, WaybillError
from waybill.worker import Worker

if TYPE_CHECKING:
    import logging

VARIABLE = "WAYBILL_RECEIVE"
PLACES = ("auto", "gpu", "host")
# The share of the memory for the KV cache that "auto" takes. A smaller cache costs tokens in every second, and a copy from the host
# some tenths of a second in each update.
_SHARE = 0.25
_MEASURED = 64 << 20


class Receiving:
    """Chooses the place, and keeps memory of the GPU for it, if it is made before the engine sizes its KV cache.

    WAYBILL_RECEIVE in the environment of the engine is the place. "gpu": the switch is a copy within the GPU. "host": it is a copy
    from pinned memory. "auto": the GPU, if the engine runs on one, a version needs at most a quarter of what is free there, and
    neither the sleep mode nor the network forbids it; else the host.

    needed  What a version needs there, in bytes.
    gpu     The engine's GPU, as torch counts them, or None.
    free    How many bytes of the GPU the engine would use for its KV cache; 0: it has them already.
    sleeps  The engine gives its GPU's memory to others at times.
    take    Allocates so many bytes of the GPU, and returns what keeps them.
    log     Where it is said what was chosen.
    """

    def __init__(
        self,
        needed: int,
        gpu: int | None,
        free: int = 0,
        *,
        sleeps: bool = False,
        take: Callable[[int], Any] | None = None,
        log: logging.Logger,
    ) -> None:
        self._place = os.environ.get(VARIABLE, "auto")
        if self._place not in PLACES:
            raise InvalidArgument(f"{VARIABLE}={self._place}: it is none of {', '.join(PLACES)}")
        self._gpu, self._kept, self._log = None, None, log
        if self._place == "gpu" and gpu is None:
            raise FailedPrecondition(f"{VARIABLE}=gpu: the engine runs on no GPU")
        if gpu is None or self._place == "host":
            return
        if self._place == "auto" and (sleeps or needed > _SHARE * free):
            log.info(
                "versions will be received in the host's memory: %s. %s=gpu receives them on the GPU",
                "the engine sleeps at times"
                if sleeps
                else f"they need {needed / 1e9:.1f} GB, and the GPU has {free / 1e9:.1f} GB for the KV cache and them",
                VARIABLE,
            )
            return
        self._gpu, self._kept = gpu, take and take(needed)

    def join(self, join: Callable[[int | None], Any]) -> Any:
        """Calls `join` with the GPU, or with None for the host, and returns what it returns.

        If "auto" has chosen a GPU whose memory the network does not reach, it calls again with the host.
        """
        self._kept = None  # Waybill allocates its own.
        if self._gpu is None:
            return join(None)
        try:
            return join(self._gpu)
        except (FailedPrecondition, Unimplemented) as error:
            if self._place == "gpu":
                raise
            return self._join_with_host(join, error)

    def _join_with_host(self, join: Callable[[int | None], Any], why: WaybillError) -> Any:
        joined = join(None)
        self._log.warning(
            "versions are received in the host's memory, because they cannot be in the GPU's: %s. %s=host gives that memory to the "
            "engine",
            why,
            VARIABLE,
        )
        self._gpu = None
        return joined


def worker_of_engine(
    told: Mapping[str, Any], group: str, rank: int, world: int, **options: Any
) -> Worker:
    """Returns a worker of the job of which trainers have told an engine. It has not joined yet.

    told     The arguments with which trainers make engines join: controller, job, token and fabric.
    options  More of Worker's: mode, ask and gpu. The default is a worker that votes for a version and then copies it.
    """
    asked: dict[str, Any] = {"mode": "shadow-copy", "ask": ("arrived", "commit"), **options}
    return Worker(
        told["controller"],
        job=told["job"],
        token=told["token"],
        group=group,
        rank=rank,
        world=world,
        fabric=told["fabric"],
        catch_up=False,  # No trainer would have the engine show it.
        **asked,
    )


def describe_switch(copied: int, again: int, gpu: int | None, device: Any) -> str:
    """Says where versions are received, and how long a switch will take: by copying a part of memory as a switch does.

    copied  Bytes that a switch copies.
    again   Bytes of them that it then casts or repacks.
    """
    place = "the host's memory" if gpu is None else f"the memory of GPU {gpu}"
    seconds = (copied + again) / _bytes_per_second(gpu, device)
    return (
        f"versions are received in {place}. A switch copies {copied / 1e6:.0f} MB, and casts or repacks {again / 1e6:.0f} MB of it: "
        f"about {seconds * 1e3:.0f} ms"
    )


def _bytes_per_second(gpu: int | None, device: Any) -> float:
    import torch  # type: ignore[import-not-found, unused-ignore]

    on_gpu = device.type == "cuda"
    source = torch.zeros(
        _MEASURED, dtype=torch.uint8, device="cpu" if gpu is None else device,
        pin_memory=on_gpu and gpu is None,
    )  # fmt: skip
    target = torch.zeros(_MEASURED, dtype=torch.uint8, device=device)
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        target.copy_(source)
        if on_gpu:
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - begin)
    return _MEASURED / min(took)
