"""Refuses a version for a reason that only the engine knows."""

from __future__ import annotations

from waybill.events import Abort, Prepare
from waybill.worker import Worker


def refuse(worker: Worker, version: int, why: str, deadline: float) -> None:
    """Refuses every update until a version, or a later one, is given up. The trainers' publish raises the reason.

    worker    Asked before an update begins: "prepare" is in its `ask`.
    deadline  In seconds, for each event.

    Raises DeadlineExceeded if no event comes in time.
    """
    for event in worker.events(deadline):
        if isinstance(event, Prepare):
            event.refuse(why)
        elif isinstance(event, Abort) and event.version >= version:
            return
