# SPDX-License-Identifier: Apache-2.0
"""Inference ranks, which show versions whole or not at all."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from waybill import _waybill
from waybill.controller import JobTensor, job_tensors
from waybill.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from waybill.events import Abort, Arrived, Commit, Ended, Event, Prepare, event_of
from waybill.holdings import allocation
from waybill.memory import DEVICE, HOST, Memory, memory_of, of_torch, torch_address
from waybill.parts import AnyPart, Part
from waybill.placements import boxes_of, is_dtensor
from waybill.pump import ARRIVED, PREPARE, SLICE_SECONDS, deadline_ns, keep
from waybill.rank import Rank
from waybill.runtime import (
    checked_fabric,
    one_of,
    rank_or_default,
    token_or_default,
    world_or_default,
)
from waybill.snapshot import Snapshot

if TYPE_CHECKING:
    from waybill.recording import Recording

MODES = {"shadow": 1, "shadow-copy": 2, "in-place": 3}
ASKS = {"prepare": 1, "arrived": 2, "commit": 4}
# The questions at which a worker checks that torch tensors have not moved, by their events.
_CHECKED = {PREPARE: ASKS["prepare"], ARRIVED: ASKS["arrived"]}
_ALL_CHECKED = sum(_CHECKED.values())


def mode_number(mode: str) -> int:
    """Returns the C ABI's number of a mode."""
    return MODES[one_of(MODES, "mode", mode)]


def gets_when_asked(updates: str) -> bool:
    """Returns whether a worker gets versions when it asks for them, and not when they are published."""
    if updates not in ("pushed", "when asked"):
        raise InvalidArgument(f'updates is {updates!r}, neither "pushed" nor "when asked"')
    return updates == "when asked"


def gpu_number(gpu: int | None) -> int:
    """Returns the C ABI's number of a GPU, or 0 for the host's memory."""
    if gpu is None:
        return 0
    if gpu < 0:
        raise InvalidArgument(f"gpu is {gpu}, less than 0")
    return gpu + 1


def ask_bits(ask: Iterable[str] | None, mode: str) -> int:
    """Returns the C ABI's bits of the events that are asked, or of those that a mode needs by default."""
    if ask is None:
        ask = ("prepare", "commit") if mode == "in-place" else ()
    bits = 0
    for event in ask:
        if event not in ASKS:
            raise InvalidArgument(f"ask has {event!r}, which is none of {', '.join(ASKS)}")
        bits |= ASKS[event]
    return bits


class State(NamedTuple):
    """What a worker shows.

    shown_version  The version that was shown last; 0: none.
    dirty          The memory holds no whole version, and there are no snapshots: an update is being written in place or
                   copied, or was given up halfway, or resume() was called without the contents.
    in_doubt       It voted for a version and lost the controller: it shows the old version until it has
                   heard the decision.
    catching_up    A version that was missed comes from another group, or from trainers that hold it.
    stragglers     How many immediates of abandoned updates have come late.
    repeats        How many immediates have come twice.
    renewals       How many times an abandoned buffer was renewed.
    unchanged_versions  How many versions had the bytes that were shown before: see Commit.unchanged.
    exact          A version is shown, and it is all of the trainers' tensors. Otherwise they have published it with
                   `tensors` or `at_most`, so that a part of it is older, or none is shown.
    """

    shown_version: int
    joined: bool
    dirty: bool
    in_doubt: bool
    catching_up: bool
    stragglers: int
    repeats: int
    renewals: int
    unchanged_versions: int
    exact: bool


def _check_filled(name: str, memory: Memory) -> None:
    """Refuses memory with holes between its elements, and names the stride; the C ABI allows no holes."""
    dimension = None if memory.empty else memory.stretched()
    if dimension is not None:
        raise InvalidArgument(
            f'"{name}": stride {memory.strides[dimension]} of dimension {dimension}, of shape '
            f"{memory.shape} with strides {memory.strides}, leaves memory between the elements that "
            "nothing fills: give the whole tensor, with parts"
        )


def _raised_by(
    call: Callable[[], object] | None, expected: type[Exception] = Exception
) -> Exception | None:
    """Calls it, if there is something to call, and returns what it raises of the expected kind."""
    if call is not None:
        try:
            call()
        except expected as error:
            return error
    return None


def _attend(queue: _waybill.Queue, reference: weakref.ref[Worker]) -> None:
    """Takes the worker's events, whether or not anybody else waits for them, so that it can answer."""
    poll = select.poll()
    poll.register(queue.fileno(), select.POLLIN)
    while True:
        poll.poll(SLICE_SECONDS * 1000)
        worker = reference()
        if worker is None or worker._over():
            return
        worker._pump.drain()
        del worker


class Worker(Rank):
    """An inference rank.

    controller      The address and port of the controller; of several controllers, all addresses,
                    separated by commas. The rank finds the one that leads. Default:
                    "127.0.0.1:7070".
    job             The name of the job. Default: "waybill".
    token           The job's secret, or a key that it has issued, or the file of either as @FILE,
                    which is read at each connection. It is never sent. Default: WAYBILL_TOKEN, or
                    the one that the processes of this user share on this host.
    group           The name of a worker's group, whose workers switch versions together. Trainers
                    have none. Default: "all".
    rank            The index of this rank, from 0 to world - 1; workers count within their group.
                    Default: RANK, as torchrun sets it, or 0 in a world of 1, or one that the
                    controller chooses (the property `rank` says which).
    world           How many trainers, or how many workers of the group, there are. Default:
                    WORLD_SIZE, as torchrun sets it, or 1.
    fabric          How the rank reaches its peers: "local", "verbs" or "tcp"; or "auto", which
                    takes for each peer the best one that has carried an empty write. Default:
                    "auto".
    host            This host's numeric address. Default: the one from which it reaches the
                    controller.
    nics            The RDMA NICs to use, in the order of their rails, separated by commas:
                    "mlx5_0", or "mlx5_0:2" for its second port, or "mlx5_0=3" with its GID index 3.
                    Default: every active port; of a rank with tensors on a GPU, those that are
                    nearest to it by PCIe, and every one where the kernel does not tell where they
                    are.
    gid_index       The GID index of every port. Default: chosen by the rule that `waybill doctor`
                    explains.
    ack_timeout     The timeout N of queue pairs, 1 to 31: a lost packet is sent again after 4.096
                    us times 2^N. Default: 14, or 18 on SoftRoCE.
    traffic_class   The traffic class of RoCE packets: DSCP times 4, plus ECN.
    rack            The name of this host's rack or leaf switch. Links between racks are often
                    oversubscribed, so a worker gets data that several trainers hold from those in
                    its own rack, as far as the balance of their loads allows. Default: unknown; the
                    rank is then in no rack with any other.
    rate_limit      The most bytes a second that the rank sends over NICs, to leave room for other
                    traffic. What its own host's ranks get through shared memory does not count.
                    Default: no limit.
    mode            How the worker holds versions. "shadow": Waybill has two buffers, and a commit
                    shows the other one; read it by snapshot(). "shadow-copy": a commit copies into
                    the tensors that were added; read them within `with reading():`. "in-place":
                    updates are written to these tensors directly, while the engine is paused.
                    Default: "shadow".
    ask             The events whose answer an update waits for: "prepare", "arrived", "commit".
                    Default: prepare and commit in place, otherwise none.
    verify_threads  How many threads verify what arrives. Default: 1, or 4 if the worker receives on
                    a GPU.
    catch_up        A worker whose group has missed a version gets it from another group that shows
                    it, as an update like any other, soon after it has joined. False: it waits for
                    the next publish.
    gpu             The index of a GPU. Waybill allocates buffers in its memory, to which the
                    network then writes. Default: the host's memory.
    updates         When the worker gets versions. "pushed": when they are published. "when asked":
                    when it calls fetch(), and no others: for rollouts in the middle of long
                    generations, evaluators, and whoever wants the newest weights now and then. No
                    publish waits for its group, whose workers all have to be like that. The
                    trainers hold their versions or keep images, or other groups show them. Default:
                    "pushed".

    >>> with Worker(rank=0, world=1, mode="shadow") as worker:
    ...     worker.add("weight", shape=(4, 3), dtype="bfloat16")
    """

    def __init__(
        self,
        # begin generated from capi/options.toml: parameters of rank and worker
        controller: str = "",
        *,
        job: str = "",
        token: str | None = None,
        group: str = "",
        rank: int | None = None,
        world: int | None = None,
        fabric: str = "auto",
        host: str = "",
        nics: str = "",
        gid_index: int | None = None,
        ack_timeout: int = 0,
        traffic_class: int = 0,
        rack: str = "",
        rate_limit: int = 0,
        mode: str = "shadow",
        ask: Iterable[str] | None = None,
        verify_threads: int = 0,
        catch_up: bool = True,
        gpu: int | None = None,
        updates: str = "pushed",
        # end generated
    ) -> None:
        identity = _waybill.RankOptions(
            # begin generated from capi/options.toml: arguments of rank in worker
            controller=controller,
            job=job,
            token=token_or_default(token),
            group=group,
            rank=rank_or_default(rank, world),
            world=world_or_default(world),
            fabric=checked_fabric(fabric),
            host=host,
            nics=nics,
            gid_index=0 if gid_index is None else gid_index + 1,
            ack_timeout=ack_timeout,
            traffic_class=traffic_class,
            rack=rack,
            rate_limit=rate_limit,
            # end generated
        )
        super().__init__(identity, world)
        self._mode = mode_number(mode)
        self._ask = ask_bits(ask, mode)
        self._options = _waybill.WorkerOptions(
            # begin generated from capi/options.toml: arguments of worker
            mode=self._mode,
            ask=self._ask,
            verify_threads=verify_threads,
            no_catch_up=not catch_up,
            gpu=gpu_number(gpu),
            updates_when_asked=gets_when_asked(updates),
            # end generated
        )
        self._controller, self._token = controller, token
        self._gpu = gpu
        self._received_version = 0  # The newest version whose Commit receive() has answered.
        # The version that receive() has returned although its Commit had not come yet; 0: none.
        self._returned_early = 0

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
        """Declares what this rank shows under a name.

        A torch tensor that has moved since then, as by `tensor.data = ...`, is not written any more: the worker
        refuses the version and names the tensor. For that it takes its events on a thread of its own, unless
        the user is asked for "prepare" and "arrived".

        tensor    The tensor that updates are written to; it is kept alive until this rank has left. It is a
                  tensor of torch (DTensors bring their boxes) or numpy, or anything with DLPack or the buffer
                  protocol. None: Waybill allocates it.
        shape     The shape of what Waybill allocates, in elements.
        dtype     The dtype of what Waybill allocates.
        box       This rank's box of the whole tensor: a half-open range [begin, end) for each dimension.
        of_shape  The shape of the whole tensor, in elements; needed with a box.
        parts     For a fused tensor: the boxes of tensors that lie in it, instead of one tensor of its name.
        """
        self._check_may_add()
        if self._mode == MODES["shadow"] and tensor is not None:
            raise InvalidArgument(
                f'"{name}": mode "shadow" shows buffers that Waybill allocates, and not this tensor: give its shape and '
                'dtype instead, or make the worker with mode="shadow-copy" or "in-place"'
            )
        if self._mode == MODES["shadow-copy"] and tensor is None:
            raise InvalidArgument(
                f'"{name}": mode "shadow-copy" copies into a tensor, and none is given: give one, or make the worker '
                'with mode="shadow"'
            )
        added = tensor
        if is_dtensor(tensor):
            parts = [Part(name, tensor.shape, its, at) for its, at in boxes_of(name, tensor)]
            tensor = tensor.to_local().detach()
        if tensor is not None:
            memory = memory_of(tensor)
            _check_filled(name, memory)
        elif shape is None or dtype is None:
            raise InvalidArgument(f'"{name}": neither a tensor nor a shape and a dtype')
        else:
            memory = allocation(dtype, shape, HOST if self._gpu is None else DEVICE)
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
        if is_dtensor(added):
            self._watch(name, memory, lambda: torch_address(added._local_tensor))
        elif of_torch(added):
            self._watch(name, memory, lambda: torch_address(added))

    def job_tensors(self, deadline: float | None = None) -> list[JobTensor]:
        """Returns the tensors that the job's trainers declare, each once. This rank need not have joined.

        deadline  In seconds from now, for trainers that are missing; None: 120.

        Raises as waybill.job_tensors() does.
        """
        return job_tensors(
            self._controller, token=self._token, deadline=120.0 if deadline is None else deadline
        )

    def add_loaded(
        self,
        model: Any,
        load_weights: Callable[..., object] | Recording,
        tensors: Mapping[str, Any] | None = None,
        *,
        optional: Iterable[str] = (),
        skip: Iterable[str] = (),
        unused: Iterable[str] = (),
        padded: Iterable[str] = (),
        cache: str | os.PathLike[str] | bool = False,
        depends_on: Mapping[str, object] | None = None,
    ) -> Recording:
        """Declares what an engine's own loader fills: every parameter of a torch module, with its parts.

        The loader runs once, over tensors without memory, on a twin of the module without memory; the module stays as
        it is. Parameters and floating-point buffers that the loader fills from tensors are added under their names in
        the module, and kept alive until this rank has left. A parameter that gets other memory, or is replaced, after
        this call is refused at the next update, by its name. Call this on the thread that owns the module, when the
        loader's memory layout is in place and the engine has not repacked it.

        model         A torch module.
        load_weights  Its loader: a method of the module (`model.load_weights`), or a function that is called with the
                      twin and an iterator over (name, tensor). Or a Recording, which was made for an equal module.
        tensors       The tensors that trainers publish, as the loader gets them: for each name (shape, dtype), shapes in
                      elements, or anything with .shape and .dtype. None: those that job_tensors() returns, for which
                      the trainers have to be joining.
        optional      Names of parameters, or patterns as "*.k_scale", that the loader need not fill.
        skip, unused, padded, cache, depends_on
                      As for waybill.torch.record().

        Returns the recording; its unread() names the tensors that this rank does not need.

        Raises Unimplemented with all parameters whose elements are no copies, FailedPrecondition if the loader fails or
        leaves a parameter unfilled, and InvalidArgument if a Recording is for other parameters; each names them.
        """
        self._check_may_add()
        from waybill.recording import Recording
        from waybill.torch.module import named_tensors, record_module

        if isinstance(load_weights, Recording):
            recording = load_weights
        else:
            if tensors is None:
                tensors = {name: (shape, dtype) for name, dtype, shape in self.job_tensors()}
            recording = record_module(
                model,
                load_weights,
                tensors,
                optional=optional,
                skip=skip,
                unused=unused,
                padded=padded,
                cache=cache,
                depends_on=depends_on,
            )
        parameters = named_tensors(model)
        recording.check_targets(parameters)
        for name, parts in recording.parts().items():
            self.add(name, parameters[name], parts=parts)
            self._watch_owner(name, model, name)
        return recording

    def receive(
        self,
        version: int | None = None,
        deadline: float | None = None,
        *,
        before_commit: Callable[[], None] | None = None,
        after_commit: Callable[[], None] | None = None,
    ) -> int:
        """Takes part in an update from its Prepare until it is shown, and returns the version that is shown.

        It answers every question of the updates that it meets with yes. Pause the engine before this call and resume it
        afterwards, unless the mode needs no pause. A worker in shadow-copy that is asked "arrived" receives a version
        while its engine computes, and nothing is copied into the tensors before this call. Other events are dropped;
        use either this or events(). One thread at a time may call it.

        version   The version to wait for: it returns once this one or a later one is shown. None: the next update that
                  has not been received.
        deadline  In seconds from now; None: no limit. An update goes on after the deadline, and the next call goes on
                  with it.
        before_commit  Called once the version is here and verified, before this worker votes for it: for what the engine
                  checks or waits for, such as its GPU. If it raises, the group keeps what it shows, and the exception
                  is raised here. Needs "arrived" in `ask`.
        after_commit  Called once a version is in the tensors and before it is reported as shown, for the steps that an
                  engine runs after loading. If it raises, the version stays committed, since the decision is final;
                  the reason reaches the trainers, and the exception is raised here. Keep the engine paused then: the
                  next version repairs it. Needs "commit" in `ask`.

        Raises the reason for the abort if the version is aborted; in place, the engine has to stay paused then.
        Raises FailedPrecondition, and refuses the version, if a torch tensor has moved since it was added;
        DeadlineExceeded; Cancelled if this rank has left; or the reason why the controller has dismissed it.
        """
        core = cast(_waybill.Worker, self._joined())
        self._check_is_asked(before_commit, after_commit)
        until = None if deadline is None else time.monotonic() + deadline
        refused: Exception | None = None  # Why this worker refused; the Abort follows.

        def newest() -> int:
            # A worker that is asked has a version once its question is answered; the engine's state says so earlier.
            if self._ask & ASKS["commit"]:
                return self._received_version
            return int(core.state()["shown_version"])

        def shown() -> bool:
            return version is not None and newest() >= version

        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._pump.until(lambda: bool(self._unread) or self._over() or shown(), left):
                wanted = "an update" if version is None else f"version {version}"
                raise DeadlineExceeded(f"{wanted} was not shown within {deadline} s")
            if not self._unread:
                if shown():
                    if newest() > self._received_version:
                        self._returned_early = newest()
                    return newest()
                raise Cancelled("the worker has left")
            event = self._unread.popleft()
            wanted_one = version is None or event.version >= version
            if isinstance(event, Commit):
                if version is None and event.version == self._returned_early:
                    wanted_one = False
                self._returned_early = 0
                error = self._answer(event, None, after_commit)
                if error is not None:
                    raise error
                if wanted_one:
                    return event.version
            elif isinstance(event, Abort):
                if wanted_one:
                    raise (
                        refused or event.reason or Aborted(f"version {event.version} was given up")
                    )
                refused = None
            elif isinstance(event, Ended):
                raise event.reason or Cancelled("the controller has dismissed the worker")
            elif isinstance(event, Prepare | Arrived):
                refused = self._answer(event, before_commit if wanted_one else None, None)

    def fetch(
        self,
        deadline: float | None = None,
        *,
        at_least: int = 0,
        before_commit: Callable[[], None] | None = None,
        after_commit: Callable[[], None] | None = None,
    ) -> int:
        """Gets the newest version, and returns the one that is shown then. For a worker with updates="when asked".

        It is the newest that any group has committed, or that all trainers hold, also if this worker shows it already; a
        version that is on its way when this is called is waited for. The workers of a group get it once all of them have
        called this. A version that is published meanwhile takes its place. Arrays of earlier snapshots have to be gone,
        since it may need their memory. It answers every question as receive() does, and drops other events. One thread at a
        time may call it.

        deadline  In seconds from now; None: 60. A version that is on its way then may still come.
        at_least  The least version that will do: this waits until there is one. shown_version + 1 waits for a newer one. Of
                  a group's workers the highest counts.
        before_commit, after_commit
                  As for receive(). If one raises, so does this.

        Raises DeadlineExceeded if there is no version yet, a newer one could not be had, or other workers of the group
        have not asked; FailedPrecondition if versions come as they are published; Cancelled if this rank leaves; or the
        reason why the controller has dismissed it.
        """
        core = cast(_waybill.Worker, self._joined())
        self._check_is_asked(before_commit, after_commit)
        until = deadline_ns(deadline)
        call = self._pump.begin(lambda token: core.fetch(at_least, until, token))
        error: Exception | None = None
        while not call.done or self._unread:
            self._pump.until(lambda: bool(self._unread) or call.done)
            if self._unread:
                error = self._answer(self._unread.popleft(), before_commit, after_commit) or error
        if call.error is not None and error is not None:
            raise error
        call.check()
        return int(core.state()["shown_version"])

    def _check_is_asked(
        self,
        before_commit: Callable[[], None] | None,
        after_commit: Callable[[], None] | None,
    ) -> None:
        for call, name, event_kind in (
            (before_commit, "before_commit", "arrived"),
            (after_commit, "after_commit", "commit"),
        ):
            if call is not None and not self._ask & ASKS[event_kind]:
                raise InvalidArgument(
                    f'{name} needs a worker that is asked: add "{event_kind}" to `ask`'
                )

    def _answer(
        self,
        event: Event,
        before_commit: Callable[[], None] | None,
        after_commit: Callable[[], None] | None,
    ) -> Exception | None:
        """Answers an event with yes, unless the user's function raises. Returns why this worker has not said yes."""
        if isinstance(event, Prepare):
            return _raised_by(event.ready, FailedPrecondition)
        if isinstance(event, Arrived):
            error = _raised_by(before_commit)
            if error is None:
                return _raised_by(event.accept, FailedPrecondition)
            event.veto(str(error))
            return error
        if isinstance(event, Commit):
            error = _raised_by(after_commit)
            event.shown() if error is None else event.failed(str(error))
            self._received_version = max(self._received_version, event.version)
            return error
        return None

    def _make(self) -> _waybill.Worker:
        if self._holdings.lent:
            manifest, self._regions = self._holdings.build_in_memory(self._context, to_write=True)
        else:
            manifest = self._holdings.build_for_allocation()
        also_ask = _ALL_CHECKED if self._watched else 0
        core = _waybill.Worker(
            self._context,
            self._identity,
            self._options,
            manifest,
            self._regions,
            self._pump.queue,
            also_ask,
        )
        if also_ask & ~self._ask:
            arguments = (self._pump.queue, weakref.ref(self))
            threading.Thread(target=_attend, args=arguments, name="waybill", daemon=True).start()
        return core

    def _to_event(self, event: _waybill.Event) -> Event:
        """Answers what the user does not want to be asked."""
        if not event.answer_wanted or self._ask & _CHECKED.get(event.kind, ASKS["commit"]):
            return super()._to_event(event)
        moved = self._find_moved()
        if moved is None:
            event.accept()
        else:
            event.refuse(moved)
        return event_of(event, False, self._find_moved)

    def pause(self) -> None:
        """Lets an engine unmap its memory on a GPU while it sleeps: releases what is registered of it.

        Until resume() the tensors are neither read nor written, and updates are refused; the rank stays joined. Call it
        before vLLM's sleep(), or before torch's memory is offloaded.

        Raises FailedPrecondition if an update is at hand or a snapshot is held: try again later.
        """
        cast(_waybill.Worker, self._joined()).pause()

    def resume(self, contents_kept: bool) -> None:
        """Ends pause(); without one it does nothing. The tensors have memory again, at the same addresses.

        contents_kept  False if the weights are lost, as after vLLM's sleep(level=2): then nothing is shown before the
                       next version.
        """
        cast(_waybill.Worker, self._joined()).resume(contents_kept)

    @property
    def state(self) -> State:
        """What the worker shows now."""
        self._pump.drain()
        return State(**cast(_waybill.Worker, self._joined()).state())

    def await_version(self, version: int, timeout: float | None = None) -> int:
        """Waits until `version` or a later one is shown, and returns the shown version. Events stay to be read.

        timeout  In seconds; None: no limit.

        Returns an earlier version, or 0, if this rank leaves meanwhile. Raises DeadlineExceeded, or the reason why the
        controller has dismissed this rank.
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

    @contextmanager
    def reading(self, holder: str = "python", timeout: float | None = None) -> Iterator[int]:
        """Keeps the shown version in the tensors for the time of a `with`, and yields its number.

        A thread that reads the tensors in mode "shadow-copy" or "in-place" while updates arrive does so within
        `with worker.reading():`. Otherwise it may read parts of two versions. A commit waits until every reader has left,
        and a reader waits until the tensors are whole, behind a commit that waits. So a thread that reads must not begin to
        read again before it has left. A reader whose GPU still works has to synchronize with it before it leaves.

        holder   The reader's name, for the error of an update that waits for it.
        timeout  In seconds, to wait until the tensors are whole; None: no limit.

        Raises FailedPrecondition if nothing is shown yet, or if the memory is paused; and DeadlineExceeded.
        """
        core = cast(_waybill.Worker, self._joined())
        held: list[_waybill.Snapshot] = []

        def take() -> bool:
            try:
                keep(held, core.snapshot, holder)
            except Unavailable:  # An update is being written.
                if self._over():
                    raise
            return bool(held)

        self._pump.demand(take, timeout, "the tensors are whole")
        try:
            yield held[0].version
        finally:
            held.clear()

    def verify(self) -> int:
        """Compares what is shown now with the digests with which it came, and returns the version.

        It finds what somebody else has written to the memory since. It reads all of it on this thread, and a commit
        waits meanwhile. Of tensors that an engine casts or repacks after they have come, what came is compared.

        Raises DataLoss, which names what differs; FailedPrecondition if nothing is shown yet, if the memory is paused, or if
        the version was published without digests; and Unavailable if the memory is being written in place, or waits to be.
        """
        self._pump.drain()
        return cast(_waybill.Worker, self._joined()).verify()

    def snapshot(self, holder: str = "python") -> Snapshot:
        """Holds the shown version, for use by `with`: its arrays do not change until it is closed and they are gone.

        holder  The reader's name, for the error of an update that waits for the snapshot.

        Raises FailedPrecondition if nothing is shown yet, or if the memory is paused; and Unavailable if it is being
        written in place, or waits to be.
        """
        self._pump.drain()
        core = cast(_waybill.Worker, self._joined())
        return Snapshot(
            core.snapshot(holder),
            self._holdings,
            self._gpu is not None,
            lambda: int(self.describe()["device"]["ordinal"]),
        )
