# SPDX-License-Identifier: Apache-2.0
"""Trainers, which hold new weights and publish versions of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from waybill import _waybill, logs
from waybill.errors import (
    Aborted,
    Code,
    FailedPrecondition,
    InvalidArgument,
    Scope,
    WaybillError,
    from_status,
)
from waybill.memory import Memory, memory_of, of_torch, torch_address, torch_changes
from waybill.names import engine_name, unwrapped
from waybill.parts import Part
from waybill.placements import boxes_of, is_dtensor
from waybill.pump import (
    ARRIVED,
    DECIDED,
    OUTCOME,
    RECEIVED,
    Call,
    Milestone,
    Pump,
    deadline_ns,
    keep,
    ppm,
)
from waybill.rank import Rank
from waybill.runtime import (
    checked_fabric,
    one_of,
    rank_or_default,
    token_or_default,
    world_or_default,
)
from waybill.streams import RecordedEvent, check_device, current_stream, wait_for

if TYPE_CHECKING:
    from waybill.recording import Recording

# The deadline of a publish that is given none, and for how long after the deadline its decision is waited for: no
# longer than that if the controller is gone for good.
_PUBLISH_SECONDS = 60.0
_DECISION_SECONDS = 30.0

# The C ABI's numbers.
_CHANGES = {"never": 0, "auto": 1, "always": 2}


def changes_number(changes: str) -> int:
    """Returns the C ABI's number of whether only what changed travels."""
    return _CHANGES[one_of(_CHANGES, "changes", changes)]


class Publish:
    """A version on its way. Its milestones can be waited for, or awaited.

    outcomes  For each group with an outcome: None if all its workers show the version, or an error. Unknown: no record
              tells. An error that says so: it is committed, and not all workers have shown it yet. Otherwise the group
              does not show the version.
    given_up  The groups that keep what they showed before, whole. Of those that are neither here nor without an error in
              `outcomes`, some workers may show the version.
    unchanged  The groups of which every worker showed the same bytes before: what training changes is not what was
               added, perhaps. Nothing is compared without digests, or if the plan has changed or a lane has died.
    """

    __slots__ = (
        "_arrived", "_asked", "_committed", "_decided_by", "_pump", "_received", "_sent", "_updates", "given_up",
        "outcomes", "unchanged", "version",
    )  # fmt: skip

    def __init__(self, pump: Pump, version: int, sent: Call, decided_by: float) -> None:
        self.version = version
        self.outcomes: dict[str, WaybillError | None] = {}
        self.given_up: set[str] = set()
        self.unchanged: set[str] = set()
        self._pump = pump
        self._sent = sent
        self._decided_by = decided_by
        self._received = Call()
        self._arrived = Call()
        self._committed = Call()
        self._asked: _waybill.Event | None = None  # The question that commit() answers.
        self._updates: list[_waybill.Update] = []  # One, once it has begun.

    @property
    def sent(self) -> Milestone:
        """The memory may change again, unless the version is held: then after release().

        Every byte has left; or with `images` every byte is copied.
        """
        return Milestone(self._pump, self._sent, f"version {self.version} sent")

    @property
    def received(self) -> Milestone:
        """With hold_commit: all groups have all of it, verified. Workers that are asked "arrived" have still to answer.

        A group that has given the version up is in `outcomes` only.
        """
        what = f"version {self.version} received"
        return Milestone(self._pump, self._received, what, self._decided_by)

    @property
    def arrived(self) -> Milestone:
        """With hold_commit: so have they all, their workers have accepted it, and they wait for commit() or abort()."""
        what = f"version {self.version} arrived"
        return Milestone(self._pump, self._arrived, what, self._decided_by)

    @property
    def committed(self) -> Milestone:
        """All groups that the version went to show it; a group that was not whole is in `outcomes` only."""
        return Milestone(
            self._pump, self._committed, f"version {self.version} committed", self._decided_by
        )

    def commit(self) -> None:
        """Makes all groups show a version that was published with hold_commit. `committed` follows.

        Raises FailedPrecondition if no group waits for it: it has not arrived, was answered, or is given up.
        """
        self._pump.drain()
        with self._pump.turn:
            asked, self._asked = self._asked, None
        if asked is None or self._committed.done:
            raise FailedPrecondition(
                f"commit version {self.version}: no group waits for it; publish it with hold_commit=True, and wait for "
                "`arrived` first"
            )
        asked.accept()

    def abort(self, reason: str = "the trainer's program has aborted it") -> None:
        """Makes all groups keep what they show, and ends `committed` with the reason; before `arrived`, too.

        Does nothing if the version is decided. Raises InvalidArgument if it was not published with hold_commit.
        """
        for update in self._updates:
            update.refuse(reason)
        self._committed.told = True  # To whoever has called this.

    def cancel(self) -> None:
        """Gives the version up, unless it was sent before: its milestones end in Cancelled."""
        for update in self._updates:
            update.cancel()

    def _finish(self, error: WaybillError | None) -> None:
        for milestone in (self._received, self._arrived, self._committed):
            if not milestone.done:
                milestone.end(error)


class Trainer(Rank):
    """A rank that holds new weights, and publishes versions of them.

    controller     The address and port of the controller; of several controllers, all addresses,
                   separated by commas. The rank finds the one that leads. Default:
                   "127.0.0.1:7070".
    job            The name of the job. Default: "waybill".
    token          The job's secret, or a key that it has issued, or the file of either as @FILE,
                   which is read at each connection. It is never sent. Default: WAYBILL_TOKEN, or
                   the one that the processes of this user share on this host.
    rank           The index of this rank, from 0 to world - 1; workers count within their group.
                   Default: RANK, as torchrun sets it, or 0 in a world of 1, or one that the
                   controller chooses (the property `rank` says which).
    world          How many trainers, or how many workers of the group, there are. Default:
                   WORLD_SIZE, as torchrun sets it, or 1.
    fabric         How the rank reaches its peers: "local", "verbs" or "tcp"; or "auto", which takes
                   for each peer the best one that has carried an empty write. Default: "auto".
    host           This host's numeric address. Default: the one from which it reaches the
                   controller.
    nics           The RDMA NICs to use, in the order of their rails, separated by commas: "mlx5_0",
                   or "mlx5_0:2" for its second port, or "mlx5_0=3" with its GID index 3. Default:
                   every active port; of a rank with tensors on a GPU, those that are nearest to it
                   by PCIe, and every one where the kernel does not tell where they are.
    gid_index      The GID index of every port. Default: chosen by the rule that `waybill doctor`
                   explains.
    ack_timeout    The timeout N of queue pairs, 1 to 31: a lost packet is sent again after 4.096 us
                   times 2^N. Default: 14, or 18 on SoftRoCE.
    traffic_class  The traffic class of RoCE packets: DSCP times 4, plus ECN.
    rack           The name of this host's rack or leaf switch. Links between racks are often
                   oversubscribed, so a worker gets data that several trainers hold from those in
                   its own rack, as far as the balance of their loads allows. Default: unknown; the
                   rank is then in no rack with any other.
    rate_limit     The most bytes a second that the rank sends over NICs, to leave room for other
                   traffic. What its own host's ranks get through shared memory does not count.
                   Default: no limit.
    stage_threads  How many threads cast and quantise. Default: 1, or 4 if the regions are GPU
                   memory.
    ring_bytes     The largest size of the staging ring. Default: 32 MiB, or 128 MiB if the regions
                   are GPU memory.
    images         True: a publish copies the tensors first, to memory that joining reserves where
                   they lie (in the host's memory or on their GPU, as large as they are), and the
                   version is sent from the copy. The tensors may change once they are copied, which
                   ends the publish, and the copy serves groups that have missed the version until
                   the next one is published. The next publish waits until the version has been
                   sent. What fails after the publish has ended is told with the outcome. What
                   several workers want alike and cannot be sent from the copy itself is cast,
                   quantised or packed once for all of them, in memory that the host reserves for it
                   when the second of them joins.
    changes        "always": as `images`, and joining reserves as much again for the version before.
                   Workers that show that version, in shadow or shadow-copy mode and in host memory,
                   get what changed since, tensor by tensor in pieces of 1 MiB, where that is
                   shorter, and complete the rest themselves; the digests of all bytes are compared
                   as ever. Other workers, and tensors that are quantised on the way, get
                   everything. It costs processor time on both sides. "auto": each group gets what
                   reached it sooner lately, that or everything, and the slower way is tried again
                   now and then. Not for tensors in GPU memory. Default: "never".

    >>> with Trainer(rank=0, world=1) as trainer:
    ...     trainer.add("weight", memoryview(bytearray(24)).cast("f"))
    """

    def __init__(
        self,
        # begin generated from capi/options.toml: parameters of rank and trainer
        controller: str = "",
        *,
        job: str = "",
        token: str | None = None,
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
        stage_threads: int = 0,
        ring_bytes: int = 0,
        images: bool = False,
        changes: str = "never",
        # end generated
    ) -> None:
        identity = _waybill.RankOptions(
            # begin generated from capi/options.toml: arguments of rank in trainer
            controller=controller,
            job=job,
            token=token_or_default(token),
            group="",
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
        self._options = _waybill.TrainerOptions(
            # begin generated from capi/options.toml: arguments of trainer
            stage_threads=stage_threads,
            ring_bytes=ring_bytes,
            images=images,
            changes=changes_number(changes),
            # end generated
        )
        self._on_device: Memory | None = None  # Some memory that is, once it is lent.
        self._publishes: list[Publish] = []  # Undecided, in the order of the calls.
        # Was sent, and no group shows it; or a tensor changed before it was sent.
        self._lost: Publish | None = None
        # Tensors of torch that share the counts of their changes with those that were added, by name.
        self._counted: dict[str, Any] = {}

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

        The same memory may be added under several names, as tied embeddings are: they are one tensor.

        tensor  A tensor of torch (DTensors bring their boxes) or numpy, or anything with DLPack or the buffer
                protocol, with any strides.
        box     This rank's box of the whole tensor: a half-open range [begin, end) for each dimension.
        shape   The shape of the whole tensor, in elements; needed with a box.
        parts   For a fused tensor: the boxes of tensors that lie in it (of a DTensor, in its to_local()), instead of one tensor
                of its name.
        """
        self._check_may_add()
        if is_dtensor(tensor):
            self._add_dtensor(name, tensor, parts)
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

    def _add_dtensor(self, name: str, tensor: Any, parts: Sequence[Part] | None) -> None:
        local = memory_of(tensor.to_local().detach())
        if parts is None:
            parts = [Part(name, tensor.shape, box, at) for box, at in boxes_of(name, tensor)]
            self._holdings.declare(name, local.dtype, tuple(tensor.shape))
        self._lend(name, local, parts)
        self._watch(name, local, lambda: torch_address(tensor._local_tensor))

    def add_module(self, module: Any, prefix: str = "") -> None:
        """Lends all parameters and persistent buffers of a torch module, under the names of its state_dict().

        DTensors, as FSDP2 and tensor parallelism make them, bring their boxes. Tied parameters are one
        tensor with two names. What torch.compile(), DistributedDataParallel and peft put before names is left out. Of a
        model of peft, call its merge_adapter() before each publish: the base layers are published as they are then.

        prefix  A string that is put before each name.
        """
        self._check_may_add()
        module = unwrapped(module)
        for key, tensor in module.state_dict(keep_vars=True).items():
            name = prefix + engine_name(key)
            if not of_torch(tensor):
                continue  # A module's extra state.
            self.add(name, tensor)
            self._watch_owner(name, module, key)

    def add_exported(
        self, module: Any, export: Callable[[Any], Any], *, skip: Iterable[str] = ()
    ) -> Recording:
        """Lends the parameters of a torch module as the tensors that the trainer's own export makes of them.

        The export runs once, over a twin of the module without memory, and what it splits, merges and renames is recorded. No
        element is gathered or copied: each rank lends what it holds, for example its shards of Megatron's fused parameters.
        Every rank of the export's groups has to call this at the same time.

        module  A torch module, or torch.nn.ModuleList(stages).
        export  Called with the twin; it returns or yields names and tensors, as engines load them:
                lambda twin: bridge.export_weights([twin]).
        skip    Names of exported tensors, or patterns, that are left out.

        Returns the recording. Raises as waybill.torch.record_export() does, and names each tensor.
        """
        self._check_may_add()
        from waybill.torch.exporting import record_export
        from waybill.torch.module import named_tensors

        recording = record_export(module, export, skip=skip)
        held = named_tensors(module)
        for name, parts in recording.parts().items():
            self.add(name, held[name], parts=cast(list[Part], parts))
            self._watch_owner(name, module, name)
        return recording

    def _lend(self, name: str, memory: Memory, parts: Sequence[Part]) -> None:
        self._holdings.add(name, memory, parts)
        if of_torch(memory.owner):
            self._counted[name] = memory.owner

    def _make(self) -> _waybill.Trainer:
        manifest, self._regions = self._holdings.build_in_memory(self._context, to_write=False)
        self._on_device = self._holdings.on_device()
        return _waybill.Trainer(
            self._context,
            self._identity,
            self._options,
            manifest,
            self._regions,
            self._pump.queue,
        )

    def _release(self) -> None:
        self._finish_all(Aborted("the trainer has left"))
        super()._release()
        self._counted.clear()
        self._on_device = None
        self._holdings.give_back()

    def _on_notice(self, event: _waybill.Event) -> None:
        if event.kind in (RECEIVED, ARRIVED, OUTCOME, DECIDED):
            same = [publish for publish in self._publishes if publish.version == event.version]
            for publish in same[:1]:  # The library refuses the others: their version is not later.
                if event.kind == RECEIVED:
                    publish._received.end(None)
                elif event.kind == ARRIVED:
                    publish._asked = event
                    publish._arrived.end(None)
                elif event.kind == OUTCOME:
                    publish.outcomes[event.group] = event.error
                    if event.unchanged:
                        publish.unchanged.add(event.group)
                    if (
                        not event.committed
                        and event.error is not None
                        and event.error.code != Code.UNKNOWN
                    ):
                        publish.given_up.add(event.group)
                else:
                    publish._finish(event.error)
                    if event.error is not None and None not in publish.outcomes.values():
                        self._lost = publish
                    self._forget_decided()
            return
        super()._on_notice(event)
        if self._ended is event:
            self._finish_all(event.error)

    def _finish_all(self, error: WaybillError | None) -> None:
        with self._pump.turn:
            for publish in self._publishes:
                publish._finish(error)
            self._publishes.clear()

    def _forget_decided(self) -> None:
        self._publishes = [p for p in self._publishes if not p._committed.done]

    def publish_async(
        self,
        # begin generated from capi/options.toml: parameters of publish
        version: int,
        *,
        deadline: float | None = None,
        digests: bool = True,
        fail_on_nonfinite: bool = False,
        hold: bool = False,
        stream: Any = None,
        hold_commit: bool = False,
        traceparent: str = "",
        max_behind: int = 0,
        tensors: Sequence[str] = (),
        at_most: float | None = None,
        # end generated
    ) -> Publish:
        """Begins to send a version; every trainer of the job publishes the same one.

        The tensors must not change until `sent` of what it returns, or with `hold` until release().

        version            The version, which must be greater than the committed one.
        deadline           The time at which the publish ends at the latest, in seconds from now.
                           Default: 60 s from now.
        digests            False: workers do not verify what arrives, and replicas are not compared.
        fail_on_nonfinite  True: a group does not show the version if NaNs or infinities are among
                           the elements that this trainer quantises for it. Other groups may show
                           it. With images, those of a tensor count for all groups for which parts
                           of the tensor are quantised together.
        hold               True: the memory stays as it is after the publish, until release(). A
                           group that has missed the version, and to which no other group can lend
                           it, gets it from the trainers, if all of them hold it. Versions whose
                           other trainers die after this one has sent its part are completed, too.
        stream             The work that has to be done before the weights are read: a
                           torch.cuda.Stream, an event (torch.cuda.Event, or the address of a
                           CUevent), or anything with synchronize(). If tensors are on a device, the
                           call does not wait for it; otherwise it does, for copies to the host.
                           Default: the current stream of the device that torch tensors are on.
        hold_commit        True: a group that has all of the version, verified, waits undecided, at
                           most until the deadline. Once every group waits or has given the version
                           up, `arrived` ends: commit() of what this returns makes the groups show
                           it, abort() makes them keep what they show. The first answer of any
                           trainer counts. A trainer that loses the controller in the meantime
                           cannot answer any more. All trainers set it alike.
        traceparent        The span of which the update is a part, as the value of a W3C traceparent
                           header. The controller's traces of the version (`waybill controller
                           --traces`) then belong to that span's trace, and are sent if it is
                           sampled. Of several trainers' spans the one counts that the controller
                           hears of first. Default: a trace of its own.
        max_behind         If not 0, the publish goes on, at most until the deadline, while a
                           required group that fetches versions (`waybill controller --require`)
                           shows one that is older by more than this number, so that no rollout
                           generates with weights that are too old while the trainer trains on. The
                           group can fetch this version meanwhile, if it can be had then: with
                           `images`, or if it is held. Other groups are not waited for. Default: 0,
                           no bound.
        tensors            The names of the tensors that are taken over into this version; * stands
                           for any text. The others stay as they are in the version before. Needs
                           the option `changes` of the trainer. Unless all are taken over, workers
                           and `waybill status` call the version approximate. All trainers publish a
                           version with the same names, and each name is known to one of them at
                           least; the first version of a trainer that has come back has to be a
                           whole one, on all of them. Default: all.
        at_most            Of each tensor, at most this fraction of the elements is taken over into
                           this version: of each 65,536 elements those that have changed most,
                           relative to the element. The others stay as they are in the version
                           before, and what was left is a change again at the next version. Elements
                           of other types than F32, F16 and BF16 are all taken over. The rules are
                           those of `tensors`. Default: all.

        A publish waits its turn within its own deadline: it begins once the version before it is sent, and in
        a group once that has decided. It also waits for a controller that is lost to come back.

        Raises, once, why the version before was lost, if nobody has waited for its milestones: it was sent and no group
        shows it, or a tensor changed. Nothing is published then; call it again.
        Raises FailedPrecondition if a tensor has moved since it was added. `sent` raises FailedPrecondition if the
        version is not later than the committed one and the last one that this trainer published; or if torch has
        counted a change of a tensor before the version was sent, so that groups may show a mixture.
        """
        core = cast(_waybill.Trainer, self._joined())
        self._raise_lost(version)
        moved = self._find_moved()
        if moved is not None:
            raise FailedPrecondition(f"publish version {version}: {moved}")
        after = self._event(stream)
        options = _waybill.PublishOptions(
            # begin generated from capi/options.toml: arguments of publish
            version=version,
            deadline_ns=deadline_ns(deadline),
            no_digests=not digests,
            fail_on_nonfinite=fail_on_nonfinite,
            hold=hold,
            after_event=0 if after is None else after.address,
            hold_commit=hold_commit,
            traceparent=traceparent,
            max_behind=max_behind,
            tensors=",".join(tensors),
            at_most_ppm=ppm(at_most),
            # end generated
        )

        changes = [torch_changes(tensor) for tensor in self._counted.values()]

        def on_sent(error: WaybillError | None) -> WaybillError | None:
            if error is not None:
                publish._finish(error)
                self._forget_decided()
                return error
            for (name, tensor), before in zip(self._counted.items(), changes):
                if torch_changes(tensor) != before:
                    error = FailedPrecondition(
                        f'version {version}: "{name}" changed before it was sent, so that groups may show a mixture: '
                        "leave tensors as they are until `sent`, and publish a later version"
                    )
                    logs.warn(str(error))
                    publish._finish(error)
                    self._lost = publish
                    break
            return error

        seconds = _PUBLISH_SECONDS if deadline is None else deadline
        decided_by = time.monotonic() + seconds + _DECISION_SECONDS
        publish = Publish(self._pump, version, Call(on_sent), decided_by)

        def start(token: int) -> None:
            keep(publish._updates, core.publish, options, token)

        try:
            with self._pump.turn:  # Events of this publish come after it is known.
                self._pump.begin(start, publish._sent)
                self._publishes.append(publish)
        except KeyboardInterrupt:
            publish.cancel()
            raise
        return publish

    def _raise_lost(self, version: int) -> None:
        self._pump.drain()
        with self._pump.turn:
            lost, self._lost = self._lost, None
        if lost is None or lost._committed.error is None:
            return
        if any(call.told for call in (lost._sent, lost._received, lost._arrived, lost._committed)):
            return
        error = lost._committed.error
        lost_by = (
            "" if lost._sent.error else f"version {lost.version} was lost, no group shows it: "
        )
        message = f"publish version {version}: {lost_by}{error}"
        raise from_status(error.code, Scope.UPDATE, message)

    def _event(self, stream: Any) -> RecordedEvent | None:
        """Returns the event that the core waits for, or None after it has waited itself."""
        if self._on_device is None:
            if stream is not None:
                wait_for(stream)
            return None
        if stream is None:
            stream = current_stream(self._on_device.owner)
        if stream is None:
            return None
        if hasattr(stream, "device"):
            device = self.describe()["device"]
            check_device(stream, device["ordinal"], f"GPU {device['ordinal']} ({device['uuid']})")
        return RecordedEvent(stream)

    def publish(
        self,
        # begin generated from capi/options.toml: parameters of publish
        version: int,
        *,
        deadline: float | None = None,
        digests: bool = True,
        fail_on_nonfinite: bool = False,
        hold: bool = False,
        stream: Any = None,
        hold_commit: bool = False,
        traceparent: str = "",
        max_behind: int = 0,
        tensors: Sequence[str] = (),
        at_most: float | None = None,
        # end generated
    ) -> Publish:
        """Does the same as publish_async(), and returns when the version is sent: the tensors may change again.

        With `hold` they may change after release().

        Raises FailedPrecondition if the version is not later, a tensor has moved since it was added or changed
        meanwhile, or a worker refused; InvalidArgument if fail_on_nonfinite found NaNs or infinities; and
        DeadlineExceeded, Unavailable, DataLoss or Cancelled if the version was sent to no group.
        """
        publish = None
        try:
            publish = self.publish_async(
                version,
                # begin generated from capi/options.toml: passed of publish
                deadline=deadline,
                digests=digests,
                fail_on_nonfinite=fail_on_nonfinite,
                hold=hold,
                stream=stream,
                hold_commit=hold_commit,
                traceparent=traceparent,
                max_behind=max_behind,
                tensors=tensors,
                at_most=at_most,
                # end generated
            )
            self._pump.wait(publish._sent)
        except KeyboardInterrupt:
            if publish is not None:
                publish.cancel()
            raise
        return publish

    def release(self) -> None:
        """Ends the hold of a version; the tensors may change afterwards. Does nothing if none is held.

        It ends within a second or so, also while the version is being sent. The next version can be published
        only afterwards.
        """
        core = cast(_waybill.Trainer, self._joined())
        self._pump.wait(self._pump.begin(core.release))
