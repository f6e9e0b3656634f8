# SPDX-License-Identifier: Apache-2.0
"""Sends a trainer's weights to engines, which go on computing until they have all of a version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from waybill.controller import query
from waybill.errors import Cancelled, DataLoss, FailedPrecondition, WaybillError, from_status
from waybill.integrations.clients import Client
from waybill.trainer import Publish, Trainer

# Is put before the names of a draft model's tensors.
DRAFT = "draft."

_log = logging.getLogger("waybill")


class Switch(NamedTuple):
    """How engines switched to a version, as the trainer that controls them saw it.

    version  The version.
    stopped  For how many seconds each engine stood still.
    spread   How many seconds after the first engine the last one had switched.
    """

    version: int
    stopped: list[float]
    spread: float


class Sending:
    """A version on its way to the engines, from a copy of the weights.

    version  The version.
    """

    def __init__(self, version: int, future: Future[None]) -> None:
        self.version = version
        self._future = future
        self._waited_for = False

    @property
    def done(self) -> bool:
        """Whether wait() returns or raises at once."""
        return self._future.done()

    def wait(self) -> int:
        """Waits until all engines serve the version, and returns it. Raises what send() raises."""
        self._waited_for = True
        self._future.result()
        return self.version

    def end(self) -> None:
        """Waits until it is over, and raises what went wrong if nobody has waited for it."""
        if self._waited_for:
            wait([self._future])
        else:
            self.wait()


def told_to_engines(
    controller: str,
    deadline: float,
    *,
    job: str = "",
    token: str | None = None,
    fabric: str = "auto",
    adapter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the arguments with which engines join the job. They are text and numbers: some engines take them as JSON."""
    return {
        "controller": controller,
        "job": job,
        "token": token,
        "fabric": fabric,
        "deadline": deadline,
        "adapter": adapter,
    }


class Sender:
    """Joins a trainer and its engines to a job, and sends versions. Every trainer rank has one.

    trainer   Not joined yet; its tensors have been added. The sender closes it.
    clients   Control the engines. Rank 0 has them; on the other ranks it is None.
    told      What told_to_engines() returned; its "adapter" is what lend_adapter() returned, if the trainer lends one.
    deadline  In seconds, for joining and for each update.
    adapter   The name under which engines serve the adapter, if the trainer lends one.
    """

    def __init__(
        self,
        trainer: Trainer,
        clients: Sequence[Client] | None,
        told: dict[str, Any],
        deadline: float,
        adapter: str | None = None,
    ) -> None:
        self.last_switch: Switch | None = None  # On the rank that controls the engines.
        self._trainer = trainer
        self._clients = None if clients is None else list(clients)
        self._deadline = deadline
        self._adapter = adapter
        self._last: Sending | None = None
        self._thread = ThreadPoolExecutor(1, "waybill-sender")
        try:
            # Trainers that are started again go on from the last published version, whether it failed or not. They ask
            # before they join, so all of them get the same answer: nobody publishes before all have joined.
            status = query(told["controller"], token=told["token"], deadline=deadline)
            self._version = int(status["published_version"])
            self._join(told)
        except BaseException:
            self.close()
            raise

    def _join(self, told: dict[str, Any]) -> None:
        # Both must join at the same time: an engine's join asks the job for the trainers' tensors.
        def join(client: Client) -> None:
            try:
                client.init_weight_transfer_engine(told)
            except BaseException:
                self._trainer.close()  # Cancels the join below.
                raise

        failed: BaseException | None = None
        engines = _Calls(self._clients or [], join)
        with engines:
            try:
                self._trainer.join(self._deadline)
            except Cancelled as cancelled:
                failed = cancelled
        failed = engines.error or failed
        if failed is not None:
            raise failed

    def send(self, version: int | None = None) -> int:
        """Makes all engines serve the present weights, and returns their version. Call it on every trainer rank.

        The weights must not change during the call. Engines go on with the old weights while the new ones arrive, and
        stand still while they switch. If it raises, the engines serve the old weights, but for those that the error names:
        these stay paused until an update succeeds, because they may have a part of the new weights.

        version  Must be greater than every version before. None: the previous version plus one.
        """
        publish = self._publish(version)
        self._bring(publish)
        return publish.version

    def send_async(self, version: int | None = None) -> Sending:
        """Begins to make all engines serve the present weights. Call it on every trainer rank.

        Returns once the weights are copied: they may change while engines receive them and switch. The next send waits until this
        one is over, and raises what went wrong if nobody has waited for it.

        version  As for send().
        """
        if not self._trainer.describe()["images"]:
            raise FailedPrecondition(
                "send_async: the weights would have to stay as they are meanwhile: make the sender with images=True"
            )
        publish = self._publish(version)
        try:
            publish.sent.wait()
        except BaseException as failed:
            publish.abort(f"a trainer: {failed}")
            raise
        self._last = Sending(publish.version, self._thread.submit(self._bring, publish))
        return self._last

    def _publish(self, version: int | None) -> Publish:
        last, self._last = self._last, None
        if last is not None:
            last.end()
        self._version = self._version + 1 if version is None else version
        hold = self._adapter is None
        return self._trainer.publish_async(self._version, deadline=self._deadline, hold_commit=hold)

    def _bring(self, publish: Publish) -> None:
        """Sees a version through until the engines serve it."""
        if self._clients and self._adapter is None:
            self._switch(publish, self._clients)
        else:
            publish.committed.wait()
        for error in publish.outcomes.values():
            if error is not None:
                raise error
        if self._adapter is not None:
            self._install_adapter(self._adapter, publish.version)

    def compare_engines(self) -> int:
        """Compares the parameters with which engines compute, and returns how many were the same in several engines.

        Each engine's own checker digests them, so that this finds also what has gone wrong since Waybill has verified a version: a
        repack, a cast, or a write of others. Only rank 0 compares; the others return 0. Parameters are compared with those of
        the first engine that has them by the same name on the same rank; engines of other shapes have others.

        Raises DataLoss: some differ; it names the engines and the parameters.
        """
        found = _Calls(self._clients or [], lambda its: its.checksums()).run()
        if found.error is not None:
            raise found.error
        first: dict[str, tuple[Client, str]] = {}
        same, wrong = 0, []
        for client, checksums in zip(found.well, found.results, strict=True):
            differ: dict[str, list[str]] = {}
            for name, checksum in checksums.items():
                reference, expected = first.setdefault(name, (client, checksum))
                same += reference is not client and checksum == expected
                if checksum != expected:
                    differ.setdefault(reference.describe(), []).append(name)
            wrong += [
                f"{client.describe()} has {len(names)} others than {reference}: {', '.join(names[:4])}"
                for reference, names in differ.items()
            ]
        if wrong:
            raise DataLoss(
                f"compare the engines: their parameters differ, which the next version repairs: {'; '.join(wrong)}"
            )
        return same

    def _install_adapter(self, name: str, version: int) -> None:
        """Lets engines load an adapter between two steps: nothing stops them."""
        failed = _Calls(self._clients or [], lambda its: its.install_adapter(name, version)).run()
        if failed.error is not None:
            raise failed.error

    def _switch(self, publish: Publish, clients: Sequence[Client]) -> None:
        """Stops the engines once they have everything, and lets all of them switch with one word."""
        try:
            publish.received.wait()
            _check_engines(publish, clients)
        except BaseException as failed:
            publish.abort(f"the trainer that controls the engines: {failed}")
            raise
        starting = _Calls(clients, lambda its: its.start_weight_update()).run()
        if starting.error is not None:
            publish.abort(str(starting.error))
            _Calls(starting.well, lambda its: its.give_up_weight_update()).run()
            raise starting.error
        committed, error = self._commit(publish, clients)

        def end(client: Client) -> None:
            groups = [group for group in publish.outcomes if client.is_engine_of(group)]
            shows = groups and all(publish.outcomes[group] is None for group in groups)
            if error is None or (committed and shows):
                client.finish_weight_update(str(publish.version))
            elif not committed or (groups and publish.given_up.issuperset(groups)):
                client.give_up_weight_update()
            else:
                client.stay_paused()

        ending = _Calls(clients, end).run()
        paused = [client.describe() for client in clients if not client.resumed_at]
        if error is not None:
            if committed and paused:
                raise _with_paused(error, paused) from error
            raise error
        if ending.error is not None:
            raise ending.error
        self._note(publish.version, clients)

    def _commit(
        self, publish: Publish, clients: Sequence[Client]
    ) -> tuple[bool, BaseException | None]:
        """Lets the engines vote, and says the word. Returns whether it was said, and what went wrong."""
        told = {"version": publish.version, "deadline": self._deadline}

        def update(client: Client) -> None:
            try:
                client.update_weights(told)
            except BaseException as error:
                publish.abort(f"{client.describe()}: {error}")
                raise

        committed, error = False, None
        engines = _Calls(clients, update)
        with engines:
            try:
                publish.arrived.wait()
                _check_engines(publish, clients)
                publish.commit()
                committed = True
                publish.committed.wait()
            except BaseException as failed:  # Also an interrupt: the engines have to go on first.
                error = failed
                publish.abort(f"the trainer that controls the engines: {failed}")
        groups = (failed for failed in publish.outcomes.values() if failed is not None)
        return committed, engines.error or error or next(groups, None)

    def _note(self, version: int, clients: Sequence[Client]) -> None:
        at = [client.switched_at for client in clients]
        stopped = [client.resumed_at - client.stopped_at for client in clients]
        self.last_switch = Switch(version, stopped, max(at) - min(at))
        _log.info(
            "version %d: %d engines switched within %.0f ms, and stood still for %.0f to %.0f ms",
            version,
            len(clients),
            self.last_switch.spread * 1e3,
            min(stopped) * 1e3,
            max(stopped) * 1e3,
        )

    def close(self) -> None:
        """Leaves the job. A version that is on its way is given up."""
        self._trainer.close()
        self._thread.shutdown()


def _check_engines(publish: Publish, clients: Sequence[Client]) -> None:
    """Raises why an engine has given the version up: the others are to keep the old weights, too."""
    for group, error in publish.outcomes.items():
        if error is not None and any(client.is_engine_of(group) for client in clients):
            raise error


def _with_paused(error: BaseException, paused: Sequence[str]) -> BaseException:
    """Returns the error with the names of the engines that stay paused."""
    said = f"{error}; paused until an update succeeds, because its weights may be of two versions: {', '.join(paused)}"
    if isinstance(error, WaybillError):
        return from_status(error.code, error.scope, said)
    # Other exceptions may take no text. An interrupt stays one.
    return FailedPrecondition(said) if isinstance(error, Exception) else type(error)(said)


class _Calls:
    """Runs a call for each client, on threads of their own, during a `with` block, which ends when all have ended.

    well     The clients whose call has not raised,
    results  and what their calls have returned.
    error  The first error, by the order of the clients; or an interrupt of this thread meanwhile; or None.
    """

    def __init__(self, clients: Sequence[Client], call: Callable[[Client], Any]) -> None:
        self._clients = clients
        self._call = call
        self._futures: list[Future[Any]] = []
        self.results: list[Any] = []
        self.well: list[Client] = []
        self.error: BaseException | None = None

    def run(self) -> _Calls:
        """Runs the calls, and returns this."""
        with self:
            return self

    def __enter__(self) -> _Calls:
        pool = ThreadPoolExecutor(max(1, len(self._clients)))
        self._futures = [pool.submit(self._call, client) for client in self._clients]
        pool.shutdown(wait=False)
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._futures:
            while not future.done():
                try:
                    wait([future])
                except KeyboardInterrupt as interrupt:
                    if self.error is not None:
                        raise
                    # The caller raises it once it has undone what has begun.
                    self.error = interrupt
        errors = [future.exception() for future in self._futures]
        self.well = [c for c, error in zip(self._clients, errors, strict=True) if error is None]
        self.results = [
            f.result() for f, error in zip(self._futures, errors, strict=True) if error is None
        ]
        self.error = next((error for error in errors if error is not None), self.error)
