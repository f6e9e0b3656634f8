"""What a worker is told of an update, in this order: Prepare, Arrived, Commit; or Abort."""

from __future__ import annotations

from waybill import _waybill
from waybill.errors import WaybillError
from waybill.pump import ABORT, ARRIVED, COMMIT, ENDED, PREPARE


class Event:
    """A notice. Answers to one that waits for none do nothing."""

    def __init__(self, event: _waybill.Event) -> None:
        self._event = event

    @property
    def version(self) -> int:
        """Of the update."""
        return self._event.version

    @property
    def answer_wanted(self) -> bool:
        """Whether the update waits for an answer, as Worker(ask=...) demands."""
        return self._event.answer_wanted

    def _accept(self) -> None:
        if self._event.answer_wanted:
            self._event.accept()

    def _refuse(self, reason: str) -> None:
        if self._event.answer_wanted:
            self._event.refuse(reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} version {self.version}>"


class Prepare(Event):
    """Pause what must be paused, then ready() or refuse()."""

    def ready(self) -> None:
        """The version may be written."""
        self._accept()

    def refuse(self, reason: str) -> None:
        """Nobody of the group shows the version; `reason` reaches every trainer."""
        self._refuse(reason)


class Arrived(Event):
    """All of it is here and verified: accept() or veto()."""

    def accept(self) -> None:
        """The version may be shown."""
        self._accept()

    def veto(self, reason: str) -> None:
        """Nobody of the group shows the version; `reason` reaches every trainer."""
        self._refuse(reason)


class Commit(Event):
    """It is shown: run what comes after loading, then shown()."""

    @property
    def pause_seconds(self) -> float:
        """What copying took, in mode "shadow-copy"."""
        return self._event.pause_ns / 1e9

    def shown(self) -> None:
        """The version is in use."""
        self._accept()


class Abort(Event):
    """It will not be shown; in place, the engine stays paused."""

    @property
    def reason(self) -> WaybillError | None:
        """Why."""
        return self._event.error


class Ended(Event):
    """The controller is gone, or has dismissed this rank; nothing comes after it but by rejoin()."""

    @property
    def reason(self) -> WaybillError | None:
        """Why."""
        return self._event.error


_CLASSES: dict[int, type[Event]] = {
    PREPARE: Prepare,
    ARRIVED: Arrived,
    COMMIT: Commit,
    ABORT: Abort,
    ENDED: Ended,
}


def event_of(event: _waybill.Event) -> Event:
    """The event in its class."""
    return _CLASSES[event.kind](event)
