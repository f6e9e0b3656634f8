"""An inference rank that shows versions, whole or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from waybill import _waybill
from waybill.errors import DeadlineExceeded, InvalidArgument
from waybill.events import Ended, Event, event_of
from waybill.holdings import allocation
from waybill.memory import Memory, memory_of
from waybill.parts import AnyPart, Part
from waybill.placements import boxes_of, is_dtensor
from waybill.rank import Rank
from waybill.runtime import identity
from waybill.snapshot import Snapshot

MODES = {"shadow": 1, "shadow-copy": 2, "in-place": 3}
ASKS = {"prepare": 1, "arrived": 2, "commit": 4}

# Of notices that nobody has read; those that ask are never dropped.
_MOST_UNREAD = 1000


class State(NamedTuple):
    """What a worker shows.

    shown_version  0: none.
    dirty          In place: written and not committed; nothing can be read.
    in_doubt       Voted and lost the controller: shows the old version until rejoin().
    stragglers     Late words of updates that were given up.
    repeats        Immediates that came twice.
    renewals       Buffers that were fenced.
    """

    shown_version: int
    joined: bool
    dirty: bool
    in_doubt: bool
    stragglers: int
    repeats: int
    renewals: int


def _check_filled(name: str, memory: Memory) -> None:
    """The C ABI wants every byte of a worker's memory to be of some tensor; this names the stride."""
    dimension = None if memory.empty else memory.stretched()
    if dimension is not None:
        raise InvalidArgument(
            f'"{name}": stride {memory.strides[dimension]} of dimension {dimension}, of shape '
            f"{memory.shape} with strides {memory.strides}, leaves memory between the elements that "
            "nothing fills: give the whole tensor, with parts"
        )


class Worker(Rank):
    """An inference rank.

    controller    Address and port.
    rank, world   Which worker of how many; None: RANK and WORLD_SIZE, as torchrun sets them, or 0 of 1.
    group         The workers of one group switch versions together.
    token         What the controller demands; None: WAYBILL_TOKEN.
    mode          "shadow": two buffers of Waybill's, a commit shows the other one; read by snapshot().
                  "shadow-copy": a commit copies into the tensors that were added.
                  "in-place": they are written directly; the engine is paused from before ready().
    ask           Which events the update waits with, for an answer: "prepare", "arrived", "commit";
                  None: prepare and commit in place, else none.
    fabric        "auto", "local", "verbs" or "tcp".

    >>> with Worker(rank=0, world=1, mode="shadow") as worker:
    ...     worker.add("weight", shape=(4, 3), dtype="bfloat16")
    """

    def __init__(
        self,
        controller: str = "",
        *,
        job: str = "",
        group: str = "",
        rank: int | None = None,
        world: int | None = None,
        token: str | None = None,
        mode: str = "shadow",
        ask: Iterable[str] | None = None,
        fabric: str = "auto",
        host: str = "",
        nics: str = "",
        gid_index: int | None = None,
        ack_timeout: int = 0,
        traffic_class: int = 0,
        verify_threads: int = 0,
    ) -> None:
        super().__init__(
            identity(
                controller, job, token, group, rank, world, fabric, host, nics, gid_index, ack_timeout,
                traffic_class,
            )
        )  # fmt: skip
        if mode not in MODES:
            raise InvalidArgument(f"mode {mode!r} is none of {', '.join(MODES)}")
        if ask is None:
            ask = ("prepare", "commit") if mode == "in-place" else ()
        asked = tuple(ask)
        for event in asked:
            if event not in ASKS:
                raise InvalidArgument(f"ask has {event!r}, which is none of {', '.join(ASKS)}")
        self._mode = MODES[mode]
        self._ask = sum(ASKS[event] for event in set(asked))
        self._verify_threads = verify_threads
        self._unread: deque[Event] = deque()

    def add(
        self,
        name: str,
        tensor: Any = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: object = None,
        box: Sequence[tuple[int, int]] | None = None,
        of_shape: Sequence[int] | None = None,
        parts: Sequence[AnyPart] | None = None,
    ) -> None:
        """What this rank is to show under a name.

        tensor    What it is written to; kept alive until this rank has left. Of torch (DTensors
                  bring their boxes), numpy, or anything with DLPack or the buffer protocol. None:
                  Waybill allocates it.
        shape     Of what Waybill allocates, in elements.
        dtype     Likewise.
        box       Which of the whole tensor it is: a half-open range [begin, end) for each dimension.
        of_shape  Of the whole tensor, in elements; needed with a box.
        parts     Where it is fused: which boxes of which tensors lie in it, instead of one of its name.
        """
        self._check_may_add()
        if is_dtensor(tensor):
            parts = [Part(name, tensor.shape, its, at) for its, at in boxes_of(name, tensor)]
            tensor = tensor.to_local().detach()
        if tensor is not None:
            memory = memory_of(tensor)
            _check_filled(name, memory)
        elif shape is None or dtype is None:
            raise InvalidArgument(f'"{name}": neither a tensor nor a shape and a dtype')
        else:
            memory = allocation(dtype, shape)
        if parts is None:
            if box is not None and of_shape is None:
                raise InvalidArgument(
                    f'"{name}": a box without of_shape, the whole tensor\'s shape'
                )
            whole = memory.shape if of_shape is None else of_shape
            part = Part(name, whole, box, at=(0,) * len(memory.shape))
            if part.extents != tuple(memory.shape):
                raise InvalidArgument(
                    f'"{name}": the box has shape {part.extents}, what holds it {tuple(memory.shape)}'
                )
            parts = [part]
        self._holdings.add(name, memory, parts)

    def _make(self) -> _waybill.Worker:
        if self._holdings.lent:
            manifest, self._regions = self._holdings.build_in_memory(self._context, to_write=True)
        else:
            manifest = self._holdings.build_for_allocation()
        return _waybill.Worker(
            self._context,
            self._identity,
            manifest,
            self._regions,
            self._pump.queue,
            self._mode,
            self._ask,
            self._verify_threads,
        )

    def _on_notice(self, event: _waybill.Event) -> None:
        super()._on_notice(event)
        if len(self._unread) >= _MOST_UNREAD and not self._unread[0].answer_wanted:
            self._unread.popleft()
        self._unread.append(event_of(event))

    def rejoin(self) -> None:
        """Comes back after Ended, with what is shown; settles what was in doubt."""
        core = cast(_waybill.Worker, self._joined())
        self._ended = None
        self._pump.wait(self._pump.begin(core.rejoin))

    def _over(self) -> bool:
        return self._left or self._ended is not None

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """What happens, until this rank leaves or Ended has come.

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
        """`async for event in worker`: the same on a loop of asyncio, which runs on meanwhile."""
        while True:
            await self._pump.until_async(lambda: bool(self._unread) or self._over())
            if not self._unread:
                return
            event = self._unread.popleft()
            yield event
            if isinstance(event, Ended):
                return

    @property
    def state(self) -> State:
        """What it shows now."""
        self._pump.drain()
        return State(**cast(_waybill.Worker, self._joined()).state())

    def await_version(self, version: int, timeout: float | None = None) -> int:
        """Until `version` or a later one is shown, which it returns. Events remain to be read.

        timeout  In seconds; None: no limit.
        """
        core = cast(_waybill.Worker, self._joined())

        def shown() -> int:
            return int(core.state()["shown_version"])

        self._pump.demand(
            lambda: shown() >= version or self._over(), timeout, f"version {version} shown"
        )
        if shown() < version and self._ended is not None and self._ended.error is not None:
            raise self._ended.error
        return shown()

    def snapshot(self, holder: str = "python") -> Snapshot:
        """A hold on the shown version, for `with`: its arrays do not change until it is closed and
        they are gone.

        holder  Who reads, for the error of an update that waits for it.

        Raises FailedPrecondition where nothing is shown yet, or the memory is being written in place.
        """
        self._pump.drain()
        core = cast(_waybill.Worker, self._joined())
        return Snapshot(core.snapshot(holder), self._holdings)
