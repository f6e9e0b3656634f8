# SPDX-License-Identifier: Apache-2.0
"""What a rank is told while it is in a job.

A worker is told of each update, in this order: Prepare, Arrived, Commit; or Abort. Every rank is told when it
loses the controller (Disconnected), when it is back (Reconnected), and when it is dismissed (Ended). A trainer is
told which groups versions go to (GroupJoined, GroupLeft), and of each worker that is gone (WorkerLost). A worker
is told when it shows what its group had missed (CaughtUp).
"""

from __future__ import annotations

from collections.abc import Callable

from waybill import _waybill
from waybill.errors import FailedPrecondition, WaybillError
from waybill.pump import (
    ABORT,
    ARRIVED,
    CAUGHT_UP,
    COMMIT,
    DISCONNECTED,
    ENDED,
    GROUP_JOINED,
    GROUP_LEFT,
    PREPARE,
    RECONNECTED,
    WORKER_LOST,
)


class Event:
    """A notice. An answer does nothing if the update does not wait for one."""

    def __init__(
        self, event: _waybill.Event, answer_wanted: bool, find_moved: Callable[[], str | None]
    ) -> None:
        self._event = event
        self._answer_wanted = answer_wanted
        self._find_moved = find_moved

    @property
    def version(self) -> int:
        """The update's version; 0 if the event is not about an update."""
        return self._event.version

    @property
    def answer_wanted(self) -> bool:
        """Whether the update waits for an answer, as Worker(ask=...) demands."""
        return self._answer_wanted

    def _accept(self) -> None:
        if self._answer_wanted:
            self._event.accept()

    def _accept_unless_moved(self) -> None:
        moved = self._find_moved() if self._answer_wanted else None
        if moved is not None:
            self._event.refuse(moved)
            raise FailedPrecondition(f"version {self.version}: {moved}")
        self._accept()

    def _refuse(self, reason: str) -> None:
        if self._answer_wanted:
            self._event.refuse(reason)

    def __repr__(self) -> str:
        about = f" version {self.version}" if self.version else ""
        return f"<{type(self).__name__}{about}>"


class Prepare(Event):
    """Pause what must be paused, then ready() or refuse()."""

    def ready(self) -> None:
        """Lets the version be written.

        Raises FailedPrecondition, and refuses, if a torch tensor has moved since it was added.
        """
        self._accept_unless_moved()

    def refuse(self, reason: str) -> None:
        """Keeps the whole group from showing the version; `reason` reaches every trainer."""
        self._refuse(reason)


class Arrived(Event):
    """The whole version is here and verified: accept() or veto() it."""

    def accept(self) -> None:
        """Lets the version be shown.

        Raises FailedPrecondition, and vetoes, if a torch tensor has moved since it was added.
        """
        self._accept_unless_moved()

    def veto(self, reason: str) -> None:
        """Keeps the whole group from showing the version; `reason` reaches every trainer."""
        self._refuse(reason)


class Commit(Event):
    """The version is shown: run what comes after loading, then call shown() or failed()."""

    @property
    def pause_seconds(self) -> float:
        """How long copying took, in mode "shadow-copy"."""
        return self._event.pause_ns / 1e9

    @property
    def unchanged(self) -> bool:
        """Whether the bytes are those that were shown before.

        False also if that is not known: without digests, or if the plan has changed or a lane has died.
        """
        return self._event.unchanged

    def shown(self) -> None:
        """Says that the version is in use."""
        self._accept()

    def failed(self, reason: str) -> None:
        """Says that the version could not be put into use. It stays committed; `reason` reaches every trainer."""
        self._refuse(reason)


class Abort(Event):
    """The version will not be shown. In place, the engine stays paused if the worker's `state` is dirty."""

    @property
    def reason(self) -> WaybillError | None:
        """Why the version will not be shown."""
        return self._event.error


class Disconnected(Event):
    """The rank has lost the controller, and tries to come back by itself. What is shown stays shown."""

    @property
    def reason(self) -> WaybillError | None:
        """How the controller was lost."""
        return self._event.error


class Reconnected(Event):
    """The rank is connected again, and takes part in updates of at least one group."""


class GroupJoined(Event):
    """Tells a trainer that versions go to a group from now on.

    After joining and after Reconnected, each group that is here is told.
    """

    @property
    def group(self) -> str:
        """The group's name."""
        return self._event.group


class GroupLeft(Event):
    """Tells a trainer that the last worker of a group has left or died."""

    @property
    def group(self) -> str:
        """The group's name."""
        return self._event.group


class WorkerLost(Event):
    """Tells a trainer that a worker has left or died, while others of its group are here.

    Versions go to the group again when all its workers are here.
    """

    @property
    def group(self) -> str:
        """The name of the worker's group."""
        return self._event.group

    @property
    def reason(self) -> WaybillError | None:
        """Which worker it is, and how it was lost."""
        return self._event.error


class CaughtUp(Event):
    """Comes after Commit: the group had missed this version, and got it from another group or from holding trainers."""


class Ended(Event):
    """The controller has dismissed this rank for good; no event comes after it."""

    @property
    def reason(self) -> WaybillError | None:
        """Why the rank was dismissed."""
        return self._event.error


_CLASSES: dict[int, type[Event]] = {
    PREPARE: Prepare,
    ARRIVED: Arrived,
    COMMIT: Commit,
    ABORT: Abort,
    ENDED: Ended,
    DISCONNECTED: Disconnected,
    RECONNECTED: Reconnected,
    GROUP_JOINED: GroupJoined,
    GROUP_LEFT: GroupLeft,
    CAUGHT_UP: CaughtUp,
    WORKER_LOST: WorkerLost,
}


def event_of(
    event: _waybill.Event, answer_wanted: bool, find_moved: Callable[[], str | None]
) -> Event:
    """Returns the event as an object of its class."""
    return _CLASSES[event.kind](event, answer_wanted, find_moved)
