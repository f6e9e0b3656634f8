"""The process, or the object in one, that plans for a job and decides commits."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from waybill import _waybill
from waybill.pump import deadline_ns
from waybill.runtime import context, read_json, token_or_default


class Controller:
    """A controller in this process; it serves until it is closed.

    listen        Address and port; port 0 takes a free one.
    token         What every rank has to show; needed beyond loopback. None: WAYBILL_TOKEN.
    decision_log  A file; "": decisions die with this process.
    trainers      How many are demanded; 0: as many as they declare. Likewise `workers`.
    join_timeout  In seconds, from the first rank's coming until all are there; None: 120.

    >>> with Controller(listen="127.0.0.1:0", job="doc") as controller:
    ...     controller.status()["job"]
    'doc'
    """

    def __init__(
        self,
        listen: str = "",
        *,
        job: str = "",
        token: str | None = None,
        decision_log: str = "",
        trainers: int = 0,
        workers: int = 0,
        join_timeout: float | None = None,
    ) -> None:
        self._core = _waybill.Controller(
            context(),
            listen,
            job,
            token_or_default(token),
            decision_log,
            trainers,
            workers,
            0 if join_timeout is None else int(join_timeout * 1e9),
        )

    @property
    def address(self) -> str:
        """Where ranks connect to: "127.0.0.1:40123"."""
        return self._core.address()

    def status(self) -> dict[str, Any]:
        """What the job is doing: phase, versions, ranks, lanes, NICs."""
        status: dict[str, Any] = read_json(self._core.status())
        return status

    def close(self) -> None:
        """Stops serving. Ranks are told; waits a second at most for them to hear it."""
        self._core.close()

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def query(
    address: str, *, token: str | None = None, deadline: float | None = None
) -> dict[str, Any]:
    """What a controller anywhere says of its job, as Controller.status().

    deadline  In seconds from now; None: 5.

    Raises Unavailable (nobody answers there), Unauthenticated (the token is wrong).
    """
    said = _waybill.query(context(), address, token_or_default(token), deadline_ns(deadline))
    status: dict[str, Any] = read_json(said)
    return status
