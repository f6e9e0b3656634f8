"""Takes events from a rank's queue and gives them to whoever waits: threads, and asyncio's loops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from waybill import _waybill
from waybill.errors import DeadlineExceeded, WaybillError

if TYPE_CHECKING:
    import asyncio

# Kinds of events, as the C ABI has them.
JOINED, PUBLISHED, LEFT, POSTED = 1, 2, 3, 4
PREPARE, ARRIVED, COMMIT, ABORT, OUTCOME, ENDED = 16, 17, 18, 19, 20, 21

# How long a thread waits before it looks again if it is to take over from the one that pumps.
SLICE_SECONDS = _waybill.SLICE_NS / 1e9
_NS = 1_000_000_000
_FOREVER = 2**62


def deadline_ns(seconds: float | None) -> int:
    """The point of the monotonic clock that is so many seconds away; 0, the default's, for None."""
    return 0 if seconds is None else time.monotonic_ns() + int(seconds * _NS)


class Call:
    """A call that was accepted, and ends with one event."""

    __slots__ = ("done", "error", "on_end")

    def __init__(self, on_end: Callable[[Call], None] | None = None) -> None:
        self.done = False
        self.error: WaybillError | None = None
        self.on_end = on_end

    def end(self, error: WaybillError | None) -> None:
        """It has ended, in `error` or well."""
        self.error = error
        self.done = True
        on_end, self.on_end = self.on_end, None  # What that belongs to has this call.
        if on_end is not None:
            on_end(self)

    def check(self) -> None:
        """Raises what it ended in."""
        if self.error is not None:
            raise self.error


ENDED_WELL = Call()
ENDED_WELL.end(None)


class Pump:
    """The queue of one rank. Any number of threads and loops may wait: one of them takes events for all.

    That one leads the queue meanwhile. Who has resigned calls hand_over(), if there are followers.
    """

    def __init__(
        self, context: _waybill.Context, on_notice: Callable[[_waybill.Event], None]
    ) -> None:
        self.queue = _waybill.Queue(context)
        self._on_notice = on_notice
        self.turn = threading.Condition()
        self.followers = 0
        self._calls: dict[int, Call] = {}
        self._loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def begin(self, start: Callable[[int], object], call: Call | None = None) -> Call:
        """start(token) begins a call of the C ABI."""
        call = Call() if call is None else call
        token = self.queue.new_token()
        self._calls[token] = call
        try:
            start(token)
        except BaseException:
            del self._calls[token]
            raise
        return call

    def wait(self, call: Call) -> None:
        """Until the call has ended; raises what it ended in."""
        self.until(lambda: call.done)
        call.check()

    async def wait_async(self, call: Call) -> None:
        """The same, on a loop of asyncio."""
        await self.until_async(lambda: call.done)
        call.check()

    def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Until the condition, which events change, is true; false where it is not in time."""
        deadline = _FOREVER if seconds is None else deadline_ns(seconds)
        with self.turn:
            while not condition():
                if time.monotonic_ns() >= deadline and not self._look():
                    return condition()
                if not self._take(deadline):
                    self._follow()
        return True

    def demand(self, condition: Callable[[], bool], seconds: float | None, what: str) -> None:
        """The same, and raises where it is not in time."""
        if not self.until(condition, seconds):
            raise DeadlineExceeded(f"{what}: not within {seconds} s")

    async def until_async(self, condition: Callable[[], bool]) -> None:
        """Until the condition is true; the loop runs on meanwhile."""
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
        """Lets all look again who wait for what no event says."""
        with self.turn:
            if self.queue.led or self._loops:
                self.queue.post(0)

    def drain(self) -> None:
        """Takes what is there."""
        with self.turn:
            while self._look():
                pass

    def expect(self, token: int, call: Call, event: _waybill.Event) -> None:
        """A call that was begun elsewhere, and the event that came, maybe its own. From who leads."""
        with self.turn:
            self._calls[token] = call
            self._dispatch(event)

    def hand_over(self) -> None:
        """Another thread that waits may take the lead."""
        with self.turn:
            self.turn.notify_all()

    def _look(self) -> bool:
        if not self.queue.try_to_lead():
            return False  # That thread is told of it, and would wait for what is gone.
        try:
            event = self.queue.take(1)  # A deadline of the past.
        finally:
            self.queue.resign()
        if event is not None:
            self._dispatch(event)
        return event is not None

    def _follow(self) -> None:
        """While another thread takes events, until it has got one or has gone."""
        self.followers += 1
        try:
            if self.queue.led:  # It asks for followers after it has given it back.
                self.turn.wait(SLICE_SECONDS)
        finally:
            self.followers -= 1

    def _take(self, deadline: int) -> bool:
        """Waits for one event, without the lock, and dispatches it. False: another thread leads."""
        if not self.queue.try_to_lead():
            return False
        event = None
        self.turn.release()
        try:
            event = self.queue.take(deadline)
        finally:
            self.turn.acquire()
            self.queue.resign()
            if event is not None:
                self._dispatch(event)
            elif self.followers:
                self.turn.notify_all()
        return True

    def _dispatch(self, event: _waybill.Event) -> None:
        """With the lock."""
        if event.kind == POSTED:
            pass
        elif event.token == 0:
            self._on_notice(event)
        else:
            # One that was interrupted is nobody's any more.
            call = self._calls.pop(event.token, None)
            if call is not None:
                call.end(event.error)
        if self.followers:
            self.turn.notify_all()
        for loop in tuple(self._loops):
            loop.call_soon_threadsafe(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for future in self._loops.get(loop, ()):
            if not future.done():
                future.set_result(None)


class Milestone:
    """Something that will have happened: ask, wait, or await it."""

    __slots__ = ("_call", "_pump", "_what")

    def __init__(self, pump: Pump, call: Call, what: str) -> None:
        self._pump = pump
        self._call = call
        self._what = what

    @property
    def done(self) -> bool:
        """Whether it has happened, or failed."""
        self._pump.drain()
        return self._call.done

    def wait(self, timeout: float | None = None) -> None:
        """Until it has happened; raises why it did not. `timeout` in seconds: it goes on afterwards."""
        self._pump.demand(lambda: self._call.done, timeout, self._what)
        self._call.check()

    def __await__(self) -> Generator[Any, None, None]:
        return self._pump.wait_async(self._call).__await__()
