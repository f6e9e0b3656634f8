# SPDX-License-Identifier: Apache-2.0
"""Takes events from a rank's queue, and gives them to the threads and asyncio loops that wait for them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from waybill import _waybill
from waybill.errors import DeadlineExceeded, InvalidArgument, WaybillError

if TYPE_CHECKING:
    import asyncio

# Kinds of events, as the C ABI numbers them.
JOINED, PUBLISHED, LEFT, POSTED, RELEASED = range(1, 6)
PREPARE, ARRIVED, COMMIT, ABORT, OUTCOME, ENDED, DISCONNECTED, RECONNECTED, DECIDED = range(16, 25)
GROUP_JOINED, GROUP_LEFT, CAUGHT_UP, WORKER_LOST, RECEIVED = range(25, 30)

# How long a thread waits before it looks again whether it should take events itself.
SLICE_SECONDS = _waybill.SLICE_NS / 1e9
_NS = 1_000_000_000
_FOREVER = 2**62
_LONGEST_SECONDS = 1e9  # Some thirty years.


def deadline_ns(seconds: float | None) -> int:
    """Returns the point of the monotonic clock that is `seconds` away, or 0 (the default deadline) for None."""
    if seconds is None:
        return 0
    if math.isnan(seconds):
        raise InvalidArgument("the deadline is not a number of seconds: nan")
    away = max(-_LONGEST_SECONDS, min(seconds, _LONGEST_SECONDS))
    return max(1, time.monotonic_ns() + int(away * _NS))


def ppm(fraction: float | None) -> int:
    """Returns a fraction above 0 and up to 1 as parts of a million, or 0 for None."""
    if fraction is None:
        return 0
    if not 1e-6 <= fraction <= 1:
        raise InvalidArgument(f"at_most is {fraction}: a fraction from 0.000001 to 1")
    return round(fraction * 1e6)


def keep(kept: list[Any], call: Callable[..., Any], *arguments: Any) -> None:
    """Appends what a function of the library returns, which no KeyboardInterrupt loses.

    Between the return of a function and the assignment of its result, Python may raise KeyboardInterrupt.
    list.extend() is one step for it.
    """
    kept.extend(map(call, *((argument,) for argument in arguments)))


class Call:
    """A call that the library accepted, and that ends with one event."""

    __slots__ = ("done", "error", "on_end", "told")

    def __init__(
        self, on_end: Callable[[WaybillError | None], WaybillError | None] | None = None
    ) -> None:
        self.done = False
        self.error: WaybillError | None = None
        self.told = False  # The error has been raised.
        self.on_end = on_end

    def end(self, error: WaybillError | None) -> None:
        """Ends the call with `error`, or successfully with None; `on_end` may put another error in its place."""
        on_end, self.on_end = self.on_end, None  # Breaks the cycle with the callback's owner.
        if on_end is not None:
            error = on_end(error)
        self.error = error
        self.done = True

    def check(self) -> None:
        """Raises the error that the call ended with, if any."""
        if self.error is not None:
            self.told = True
            raise self.error


class Pump:
    """The queue of one rank. Any number of threads and loops may wait; one thread takes events for all."""

    def __init__(
        self, context: _waybill.Context, on_notice: Callable[[_waybill.Event], None]
    ) -> None:
        self.queue = _waybill.Queue(context)
        self._on_notice = on_notice
        self.turn = threading.Condition()  # Guards everything below.
        self._taking = False  # A thread waits for events without the lock.
        self._last_token = 0
        self._calls: dict[int, Call] = {}
        self._loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def begin(self, start: Callable[[int], object], call: Call | None = None) -> Call:
        """Begins a call of the C ABI by start(token), and returns it."""
        call = Call() if call is None else call
        with self.turn:
            self._last_token += 1
            token = self._last_token
            self._calls[token] = call
        try:
            start(token)
        except BaseException:
            with self.turn:
                del self._calls[token]
            raise
        return call

    def wait(self, call: Call) -> None:
        """Waits until the call has ended, and raises the error that it ended with."""
        self.until(lambda: call.done)
        call.check()

    async def wait_async(self, call: Call) -> None:
        """Does the same as wait() on a loop of asyncio."""
        await self.until_async(lambda: call.done)
        call.check()

    def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until the condition, which events change, is true. Returns False if the time runs out."""
        deadline = _FOREVER if seconds is None else deadline_ns(seconds)
        with self.turn:
            while not condition():
                if time.monotonic_ns() >= deadline and not self._look():
                    return condition()
                if self._taking:
                    self.turn.wait(SLICE_SECONDS)
                else:
                    self._take(deadline)
        return True

    def demand(self, condition: Callable[[], bool], seconds: float | None, what: str) -> None:
        """Does the same as until(), but raises DeadlineExceeded if the time runs out."""
        if not self.until(condition, seconds):
            raise DeadlineExceeded(f"{what}: not within {seconds} s")

    async def until_async(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition is true; the loop runs on meanwhile."""
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            self.drain()
            if condition():
                return
            waiting = self._loops.setdefault(loop, [])
            if not waiting:
                loop.add_reader(self.queue.fileno(), self._wake, loop)
            future = loop.create_future()
            waiting.append(future)
            try:
                await future
            finally:
                waiting.remove(future)
                if not waiting:
                    loop.remove_reader(self.queue.fileno())
                    del self._loops[loop]

    def wake(self) -> None:
        """Makes all waiters look again at conditions that no event announces."""
        with self.turn:
            if self._taking or self._loops:
                self.queue.post(0)

    def drain(self) -> None:
        """Takes the events that are there."""
        with self.turn:
            while self._look():
                pass

    def _look(self) -> bool:
        """Takes one event without waiting. Returns False if none is there, or another thread is waiting."""
        if self._taking:
            return False  # The waiting thread would miss the event.
        event = self.queue.take(1)  # A deadline of the past.
        if event is not None:
            self._dispatch(event)
        return event is not None

    def _take(self, deadline: int) -> None:
        """Waits for one event without the lock, and dispatches it."""
        taken: list[_waybill.Event | None] = []
        self._taking = True
        self.turn.release()
        try:
            keep(taken, self.queue.take, deadline)
        finally:
            self.turn.acquire()
            self._taking = False
            self.turn.notify_all()  # Another thread may have to take events now.
            for event in taken:
                if event is not None:
                    self._dispatch(event)

    def _dispatch(self, event: _waybill.Event) -> None:
        """Gives an event to its call or to the rank, and wakes all waiters. Needs the lock."""
        if event.kind == POSTED:
            pass
        elif event.token == 0:
            self._on_notice(event)
        else:
            call = self._calls.pop(event.token, None)
            if call is not None:  # None if begin() was interrupted.
                call.end(event.error)
        self.turn.notify_all()
        for loop in tuple(self._loops):
            loop.call_soon_threadsafe(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for future in self._loops.get(loop, ()):
            if not future.done():
                future.set_result(None)


class Milestone:
    """Something that will happen: ask whether it has, wait for it, or await it.

    until  When a wait without a timeout ends, on time.monotonic()'s clock; None: when the milestone is reached.
    """

    __slots__ = ("_call", "_pump", "_until", "_what")

    def __init__(self, pump: Pump, call: Call, what: str, until: float | None = None) -> None:
        self._pump = pump
        self._call = call
        self._what = what
        self._until = until

    @property
    def done(self) -> bool:
        """Whether it has happened or failed."""
        self._pump.drain()
        return self._call.done

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has happened, and raises the error if it failed.

        timeout  In seconds; None: until 30 s after the deadline of a publish. The work goes on after the timeout.

        Raises DeadlineExceeded if the time runs out, as it does for a version that was sent if the controller is gone.
        """
        if timeout is None and self._until is not None:
            timeout = max(0.0, self._until - time.monotonic())
        self._pump.demand(lambda: self._call.done, timeout, self._what)
        self._call.check()

    def __await__(self) -> Generator[Any, None, None]:
        return self._pump.wait_async(self._call).__await__()
