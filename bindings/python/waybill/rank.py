# SPDX-License-Identifier: Apache-2.0
"""The base class of trainers and workers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from waybill import _waybill
from waybill.errors import Cancelled, DeadlineExceeded, FailedPrecondition
from waybill.events import Ended, Event, event_of
from waybill.holdings import Holdings
from waybill.memory import Memory, torch_address
from waybill.placements import is_dtensor
from waybill.pump import ENDED, Pump, deadline_ns
from waybill.runtime import context, read_json

if TYPE_CHECKING:
    from waybill.planning import Manifest

Self = TypeVar("Self", bound="Rank")

# How many events that nobody reads are kept. Those that want an answer are never dropped.
_MOST_UNREAD = 1000


class Rank:
    """A member of a job. It adds what it holds, joins, and leaves."""

    def __init__(self, identity: _waybill.RankOptions, world: int | None) -> None:
        self._identity = identity
        self._launched_as = os.environ.get("WORLD_SIZE") if world is None else None
        self._process = os.getpid()
        self._context = context()
        self._pump = Pump(self._context, self._on_notice)
        self._holdings = Holdings()
        self._regions: list[_waybill.Region] = []
        self._core: _waybill.Trainer | _waybill.Worker | None = None
        self._left = False
        self._ended: _waybill.Event | None = None
        self._unread: deque[Event] = deque()
        # Names, addresses when they were added, and functions that return the addresses of now.
        self._watched: list[tuple[str, int, Callable[[], int]]] = []

    def _on_notice(self, event: _waybill.Event) -> None:
        if event.kind == ENDED:
            self._ended = event
        if len(self._unread) >= _MOST_UNREAD and not self._unread[0].answer_wanted:
            self._unread.popleft()
        self._unread.append(self._to_event(event))

    def _to_event(self, event: _waybill.Event) -> Event:
        return event_of(event, event.answer_wanted, self._find_moved)

    def _watch(self, name: str, memory: Memory, address: Callable[[], int]) -> None:
        if not memory.empty:
            self._watched.append((name, memory.address, address))

    def _watch_owner(self, name: str, module: Any, key: str) -> None:
        """Watches for another parameter that the module gets under the same name."""
        path, _, leaf = key.rpartition(".")
        try:
            owner = module.get_submodule(path)
        except AttributeError:
            return  # A name that a hook of state_dict() made up.
        registered = getattr(owner, leaf, None)
        if registered is None or is_dtensor(registered) or self._holdings[name].memory.empty:
            return

        def address() -> int:
            now = getattr(owner, leaf)
            # Between forward and backward FSDP2 registers the gathered parameter.
            return lent if is_dtensor(now) else torch_address(now)

        lent = self._holdings[name].memory.address
        if torch_address(registered) == lent:
            self._watched.append((name, lent, address))

    def _find_moved(self) -> str | None:
        """Says which tensor has moved since it was added, or returns None."""
        for name, lent, address in self._watched:
            now = address()
            if now != lent:
                return (
                    f'"{name}" has moved since it was added (its address was {lent:#x}, is {now:#x}): copy '
                    "into the tensor that was added, or join anew with the other one"
                )
        return None

    def _over(self) -> bool:
        return self._left or self._ended is not None

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Yields what happens, until this rank leaves or Ended has come.

        timeout  In seconds, between two events: DeadlineExceeded is raised then; None: no limit.
        """
        while True:
            if not self._pump.until(lambda: bool(self._unread) or self._over(), timeout):
                raise DeadlineExceeded(f"no event came within {timeout} s")
            if not self._unread:
                return
            event = self._unread.popleft()
            yield event
            if isinstance(event, Ended):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yields the same for `async for event in rank`, on a loop of asyncio, which runs on meanwhile."""
        while True:
            await self._pump.until_async(lambda: bool(self._unread) or self._over())
            if not self._unread:
                return
            event = self._unread.popleft()
            yield event
            if isinstance(event, Ended):
                return

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
            if self._left:  # Another thread has called close().
                self.close()
                raise Cancelled("join: the rank was closed")
        until = deadline_ns(deadline)
        return self._pump.begin(lambda token: core.join(until, token))

    def join(self, deadline: float | None = None) -> None:
        """Joins the job. Returns when a group has all its ranks and every lane to them works.

        For a worker it is its own group; for a trainer it is the first group that is ready.

        deadline  In seconds from now; None: 120.

        Raises Unavailable (no controller answers), Unauthenticated (the controller has another
        token), AlreadyExists (another process has this rank), DeadlineExceeded (names the missing
        ranks), InvalidArgument (the manifests do not fit together), FailedPrecondition (another
        rank has declared another world) or ResourceExhausted (not enough memory).
        """
        try:
            self._pump.wait(self._begin_join(deadline))
        except DeadlineExceeded as error:
            raise self._explained(error) from None

    def _explained(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """Says where the number of ranks that are waited for comes from."""
        if self._launched_as is None:
            return error
        return DeadlineExceeded(f"{error}; there are {self._launched_as} of its kind by WORLD_SIZE")

    async def join_async(self, deadline: float | None = None) -> None:
        """Does the same as join() on a loop of asyncio."""
        try:
            await self._pump.wait_async(self._begin_join(deadline))
        except DeadlineExceeded as error:
            raise self._explained(error) from None

    def leave(self) -> None:
        """Leaves the job. Calls that are under way end in Cancelled.

        When it returns, the lent memory is the caller's again.
        """
        if self._core is None or self._left:
            return
        self._pump.wait(self._pump.begin(self._core.leave))
        self._release()

    def close(self) -> None:
        """Leaves at once and gives everything back. Calls that are under way end in Cancelled.

        In a process that was forked since, it does nothing: the rank is the parent's.
        """
        if os.getpid() != self._process:
            return
        if self._core is not None:
            self._core.close()
        self._release()

    def _release(self) -> None:
        self._left = True
        self._watched.clear()
        self._pump.wake()
        for region in self._regions:
            region.close()
        self._regions = []

    @property
    def rank(self) -> int:
        """Which rank this is, as given or, once it has joined, as the controller has chosen."""
        return int(self.describe()["rank"])

    def describe(self) -> dict[str, Any]:
        """Returns what was chosen and why: identity, lanes with their paths, NICs."""
        description: dict[str, Any] = read_json(self._joined().describe())
        return description

    def progress(self) -> dict[str, Any]:
        """Returns how far the latest update has come; "stages_ns" has [begin, end] of each stage."""
        return self._joined().progress()

    def _joined(self) -> _waybill.Trainer | _waybill.Worker:
        if self._core is None:
            role = type(self).__name__.lower()
            raise FailedPrecondition(f"the {role} has not joined: call join() first")
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
