"""What trainers and workers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from waybill import _waybill
from waybill.errors import FailedPrecondition
from waybill.holdings import Holdings
from waybill.pump import ENDED, Pump, deadline_ns
from waybill.runtime import context, read_json

if TYPE_CHECKING:
    from waybill.planning import Manifest

Self = TypeVar("Self", bound="Rank")


class Rank:
    """A member of a job: it adds what it holds, joins, and leaves."""

    def __init__(self, identity: _waybill.Identity) -> None:
        self._identity = identity
        self._context = context()
        self._pump = Pump(self._context, self._on_notice)
        self._holdings = Holdings()
        self._regions: list[_waybill.Region] = []
        self._core: _waybill.Trainer | _waybill.Worker | None = None
        self._left = False
        self._ended: _waybill.Event | None = None

    def _on_notice(self, event: _waybill.Event) -> None:
        if event.kind == ENDED:
            self._ended = event

    def _make(self) -> _waybill.Trainer | _waybill.Worker:
        raise NotImplementedError

    def _check_may_add(self) -> None:
        if self._core is not None:
            raise FailedPrecondition("it has joined: what it holds is settled")

    def add_manifest(self, manifest: Manifest, buffers: Sequence[Any] = ()) -> None:
        """Holds exactly what a manifest says, as Layout makes them, instead of what add() is told.

        buffers  One for each of its regions, as large and contiguous; kept alive until this rank has
                 left. A worker without any: Waybill allocates.
        """
        self._check_may_add()
        self._holdings.settle(manifest._core, buffers)

    def _begin_join(self, deadline: float | None) -> Any:
        core = self._core
        if core is None:
            core = self._core = self._make()
        until = deadline_ns(deadline)
        return self._pump.begin(lambda token: core.join(until, token))

    def join(self, deadline: float | None = None) -> None:
        """Joins the job: returns when all its ranks are there and every lane carries.

        deadline  In seconds from now; None: 120.

        Raises Unavailable (no controller), Unauthenticated (a wrong token), AlreadyExists (this rank is
        there), DeadlineExceeded (names who is missing), InvalidArgument (the ranks do not fit together).
        """
        self._pump.wait(self._begin_join(deadline))

    async def join_async(self, deadline: float | None = None) -> None:
        """As join(), on a loop of asyncio."""
        await self._pump.wait_async(self._begin_join(deadline))

    def leave(self) -> None:
        """Leaves the job, after what was called before; what was lent is the caller's again."""
        if self._core is None or self._left:
            return
        self._pump.wait(self._pump.begin(self._core.leave))
        self._release()

    def close(self) -> None:
        """Leaves at once, and gives everything back: calls that are under way end in Cancelled."""
        if self._core is not None:
            self._core.close()
        self._release()

    def _release(self) -> None:
        self._left = True
        self._pump.wake()
        for region in self._regions:
            region.close()
        self._regions = []

    def describe(self) -> dict[str, Any]:
        """What was chosen and why: identity, lanes with their paths, NICs."""
        description: dict[str, Any] = read_json(self._joined().describe())
        return description

    def progress(self) -> dict[str, Any]:
        """How far the latest update has come: bytes, writes; "stages_ns" has [begin, end] of each stage."""
        return self._joined().progress()

    def _joined(self) -> _waybill.Trainer | _waybill.Worker:
        if self._core is None:
            raise FailedPrecondition("it has not joined")
        return self._core

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
