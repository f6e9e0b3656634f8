"""A rank that holds new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from waybill import _waybill
from waybill.errors import Aborted, FailedPrecondition, InvalidArgument, WaybillError
from waybill.memory import Memory, memory_of, of_torch, torch_address
from waybill.parts import Part
from waybill.placements import boxes_of, is_dtensor
from waybill.pump import ENDED_WELL, OUTCOME, Call, Milestone, Pump, deadline_ns
from waybill.rank import Rank
from waybill.runtime import identity
from waybill.streams import current_stream, event_behind, wait_for


class Publish:
    """A version on its way. Its milestones can be waited for, or awaited.

    outcomes  Of each group that has decided: None, or the error why it does not show it.
    """

    __slots__ = ("_committed", "_groups", "_pump", "_sent", "_update", "outcomes", "version")

    def __init__(
        self, pump: Pump, groups: Sequence[str], version: int, sent: Call | None = None
    ) -> None:
        self.version = version
        self.outcomes: dict[str, WaybillError | None] = {}
        self._pump = pump
        self._groups = groups
        self._sent = Call(self._on_sent) if sent is None else sent
        self._committed: Call | None = None  # Not everybody asks for it.
        self._update: _waybill.Update | None = None

    @property
    def sent(self) -> Milestone:
        """The memory may change again, and every byte has left."""
        return Milestone(self._pump, self._sent, f"version {self.version} sent")

    @property
    def committed(self) -> Milestone:
        """All groups show it."""
        with self._pump.turn:
            call = self._committed_call()
        return Milestone(self._pump, call, f"version {self.version} committed")

    def _committed_call(self) -> Call:
        if self._committed is None:
            self._committed = Call()
        return self._committed

    def cancel(self) -> None:
        """Gives it up, where it was not sent before: its milestones end in Cancelled."""
        if self._update is not None:
            self._update.cancel()

    def _on_sent(self, sent: Call) -> None:
        if sent.error is not None:
            self._finish(sent.error)

    def _on_outcome(self, group: str, error: WaybillError | None) -> bool:
        """Whether no other is of interest."""
        self.outcomes[group] = error
        if len(self.outcomes) == len(self._groups):
            failed = [why for why in self.outcomes.values() if why is not None]
            self._finish(failed[0] if failed else None)
        return self._committed is not None and self._committed.done

    def _finish(self, error: WaybillError | None) -> None:
        committed = self._committed_call()
        if not committed.done:
            committed.end(error)


class Trainer(Rank):
    """A rank that holds new weights, and publishes versions of them.

    controller    Address and port.
    rank, world   Which trainer of how many; None: RANK and WORLD_SIZE, as torchrun sets them, or 0 of 1.
    token         What the controller demands; None: WAYBILL_TOKEN.
    fabric        "auto", "local", "verbs" or "tcp".
    ring_bytes    Bound of the staging ring, in bytes; 0: 32 MiB.
    stage_threads How many threads cast and quantise; 0: 1, or 4 where tensors are on a device.

    >>> with Trainer(rank=0, world=1) as trainer:
    ...     trainer.add("weight", memoryview(bytearray(24)).cast("f"))
    """

    def __init__(
        self,
        controller: str = "",
        *,
        job: str = "",
        rank: int | None = None,
        world: int | None = None,
        token: str | None = None,
        fabric: str = "auto",
        host: str = "",
        nics: str = "",
        gid_index: int | None = None,
        ack_timeout: int = 0,
        traffic_class: int = 0,
        ring_bytes: int = 0,
        stage_threads: int = 0,
    ) -> None:
        super().__init__(
            identity(
                controller, job, token, "", rank, world, fabric, host, nics, gid_index, ack_timeout,
                traffic_class,
            )
        )  # fmt: skip
        self._ring_bytes = ring_bytes
        self._stage_threads = stage_threads
        self._checks: list[tuple[str, int, Callable[[], int]]] = []
        self._on_device: Memory | None = None  # Some memory that is, once it is lent.
        self._publishes: dict[int, Publish] = {}
        self._groups: Sequence[str] = ()
        self._publisher: _waybill.Publisher | None = None  # Once the groups are known.

    def add(
        self,
        name: str,
        tensor: Any,
        *,
        box: Sequence[tuple[int, int]] | None = None,
        shape: Sequence[int] | None = None,
        parts: Sequence[Part] | None = None,
    ) -> None:
        """Lends a tensor, or this rank's box of one; it is kept alive until this rank has left.

        tensor  Of torch (DTensors bring their boxes), numpy, or anything with DLPack or the buffer
                protocol. Any strides.
        box     Which of the whole tensor it is: a half-open range [begin, end) for each dimension.
        shape   Of the whole tensor, in elements; needed with a box.
        parts   Where it is fused: what lies in it, instead of one tensor of its name.
        """
        self._check_may_add()
        if is_dtensor(tensor):
            self._add_dtensor(name, tensor)
            return
        memory = memory_of(tensor)
        if parts is None:
            if box is not None and shape is None:
                raise InvalidArgument(f'"{name}": a box without the whole tensor\'s shape')
            whole = memory.shape if shape is None else tuple(shape)
            parts = [Part(name, whole, box, at=(0,) * len(memory.shape))]
            if parts[0].extents != tuple(memory.shape):
                raise InvalidArgument(
                    f'"{name}": the box has shape {parts[0].extents}, the tensor {tuple(memory.shape)}'
                )
        self._lend(name, memory, parts)
        if of_torch(tensor):
            self._watch(name, memory, lambda: torch_address(tensor))

    def _add_dtensor(self, name: str, tensor: Any) -> None:
        local = memory_of(tensor.to_local().detach())
        self._lend(
            name,
            local,
            [Part(name, tensor.shape, box, at) for box, at in boxes_of(name, tensor)],
        )
        self._holdings.declare(name, local.dtype, tuple(tensor.shape))
        self._watch(name, local, lambda: torch_address(tensor._local_tensor))

    def add_module(self, module: Any, prefix: str = "") -> None:
        """Lends all parameters and persistent buffers of a torch module, under the names of its state_dict().

        DTensors, as FSDP2 and tensor parallelism make them, bring their boxes. Tied parameters are one
        tensor with two names.

        prefix  Goes before each name.
        """
        self._check_may_add()
        names: dict[int, str] = {}
        for key, tensor in module.state_dict(keep_vars=True).items():
            name = prefix + key
            if not of_torch(tensor):
                continue  # A module's extra state.
            first = names.setdefault(id(tensor), name)
            if first != name:
                self._holdings.alias(name, first)
                continue
            self.add(name, tensor)
            self._watch_owner(name, module, key)

    def _lend(self, name: str, memory: Memory, parts: Sequence[Part]) -> None:
        self._holdings.add(name, memory, parts)

    def _watch(self, name: str, memory: Memory, address: Callable[[], int]) -> None:
        if not memory.empty:
            self._checks.append((name, memory.address, address))

    def _watch_owner(self, name: str, module: Any, key: str) -> None:
        """A module may get another parameter under the same name: that one's address counts then."""
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
            # FSDP2 registers the gathered parameter between forward and backward.
            return lent if is_dtensor(now) else torch_address(now)

        lent = self._holdings[name].memory.address
        if torch_address(registered) == lent:
            self._checks.append((name, lent, address))

    def _make(self) -> _waybill.Trainer:
        manifest, self._regions = self._holdings.build_in_memory(self._context, to_write=False)
        self._on_device = self._holdings.on_device()
        return _waybill.Trainer(
            self._context,
            self._identity,
            manifest,
            self._regions,
            self._pump.queue,
            self._ring_bytes,
            self._stage_threads,
        )

    def _release(self) -> None:
        super()._release()
        self._checks.clear()
        self._on_device = None
        self._holdings.give_back()

    def _on_notice(self, event: _waybill.Event) -> None:
        super()._on_notice(event)
        if event.kind == OUTCOME:
            publish = self._publishes.get(event.version)
            if publish is not None and publish._on_outcome(event.group, event.error):
                del self._publishes[event.version]
        elif self._ended is event:
            for publish in self._publishes.values():
                publish._finish(event.error or Aborted("the trainer has left"))
            self._publishes.clear()

    def publish_async(
        self,
        version: int,
        *,
        deadline: float | None = None,
        digests: bool = True,
        fail_on_nonfinite: bool = False,
        stream: Any = None,
    ) -> Publish:
        """Begins to send a version; every trainer of the job publishes the same one.

        The tensors must not change until `sent` of what it returns.

        version            Later than what is committed.
        deadline           In seconds from now; None: 60.
        digests            Workers verify what arrives.
        fail_on_nonfinite  Nobody shows it where NaNs or infinities are quantised.
        stream             Work that has to be done before the weights are read: a torch.cuda.Stream, an
                           event (torch.cuda.Event, or a CUevent's address), or anything with
                           synchronize(). Where tensors are on a device the call does not wait for it;
                           else, for copies to the host, it does. None: the current stream of the
                           device that torch tensors are on.

        Calls are carried out one after the other: it waits until the one before it is SENT. Where not all
        groups have decided about that one by then, it is refused ("version 1 is being published"): wait for
        `committed`, or publish again.

        Raises FailedPrecondition where a tensor has moved since join(), or the version is not later.
        """
        self._check_publish(version)
        after = self._event(stream)
        return self._begin_publish(version, deadline, digests, fail_on_nonfinite, after)

    def _event(self, stream: Any) -> int:
        """A CUDA event's address that the core waits for, or 0: then it was waited for here."""
        if self._on_device is None:
            if stream is not None:
                wait_for(stream)
            return 0
        if stream is None:
            stream = current_stream(self._on_device.owner)
        return 0 if stream is None else event_behind(stream)

    def _check_publish(self, version: int) -> _waybill.Publisher:
        core = cast(_waybill.Trainer, self._joined())
        for name, lent, address in self._checks:
            if address() != lent:
                raise FailedPrecondition(
                    f'publish version {version}: "{name}" has moved since it was added (its address was '
                    f"{lent:#x}, is {address():#x}): copy into the tensor that was added, or make a new trainer"
                )
        if self._publisher is None:
            self._groups = self.describe()["groups"]
            self._publisher = _waybill.Publisher(core, self._pump.queue)
        return self._publisher

    def _begin_publish(
        self,
        version: int,
        deadline: float | None,
        digests: bool,
        fail_on_nonfinite: bool,
        after_event: int,
    ) -> Publish:
        core = cast(_waybill.Trainer, self._core)
        publish = Publish(self._pump, self._groups, version)
        until = deadline_ns(deadline)

        def start(token: int) -> None:
            before = self._publishes.get(version)
            self._publishes[version] = publish
            try:
                publish._update = core.publish(
                    version, until, digests, fail_on_nonfinite, after_event, token
                )
            except BaseException:
                self._publishes.pop(version)
                if before is not None:
                    self._publishes[version] = before
                raise

        self._pump.begin(start, publish._sent)
        return publish

    def publish(
        self,
        version: int,
        *,
        deadline: float | None = None,
        digests: bool = True,
        fail_on_nonfinite: bool = False,
        stream: Any = None,
    ) -> Publish:
        """As publish_async(), and returns when the version is SENT: the tensors may change again.

        Raises DeadlineExceeded, Unavailable, DataLoss or Cancelled where no group will show it.
        """
        publisher = self._publisher
        if publisher is None or self._checks:
            publisher = self._check_publish(version)
        after = 0 if stream is None and self._on_device is None else self._event(stream)
        token = publisher.begin(version, deadline, digests, fail_on_nonfinite, after)
        if token == 0:  # Another thread takes this rank's events.
            return self._await_sent(
                self._begin_publish(version, deadline, digests, fail_on_nonfinite, after)
            )
        event, pump = None, self._pump
        try:  # While the core sends.
            publish = self._publishes[version] = Publish(pump, self._groups, version, ENDED_WELL)
            event = publisher.await_sent(token)
            if event is not None:
                publish._sent = Call(publish._on_sent)
                publish._update = publisher.take_update()
                pump.expect(token, publish._sent, event)
                publisher.resign()
        except BaseException:
            publisher.give_up()
            raise
        finally:
            if pump.followers:
                pump.hand_over()
        return publish if event is None else self._await_sent(publish)

    def _await_sent(self, publish: Publish) -> Publish:
        try:
            self._pump.wait(publish._sent)
        except KeyboardInterrupt:
            publish.cancel()
            raise
        return publish
