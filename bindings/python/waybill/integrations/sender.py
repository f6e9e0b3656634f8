"""Sends a trainer's weights to engines that have to be told to receive them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from waybill.controller import query
from waybill.errors import Cancelled
from waybill.integrations.clients import Client, Clients
from waybill.trainer import Trainer


class Sender:
    """Joins a trainer and its engines to a job, and sends versions. Every trainer rank has one.

    trainer   Not joined yet; its tensors have been added. The sender closes it.
    client    Controls the engines. Rank 0 has one; on the other ranks it is None.
    told      The arguments with which rank 0 makes the engines join: controller, job, token, fabric and deadline.
    deadline  In seconds, for joining and for each update.
    """

    def __init__(
        self,
        trainer: Trainer,
        client: Client | Clients | None,
        told: dict[str, Any],
        deadline: float,
    ) -> None:
        self._trainer = trainer
        self._client = client
        self._deadline = deadline
        try:
            # Trainers that are started again go on from the last published version, whether it failed or not. They ask
            # before they join, so all of them get the same answer: nobody publishes before all have joined.
            status = query(told["controller"], token=told["token"], deadline=deadline)
            self._version = int(status["published_version"])
            self._join(told)
        except BaseException:
            trainer.close()
            raise

    def _join(self, told: dict[str, Any]) -> None:
        # Both must join at the same time: an engine's join asks the job for the trainers' tensors.
        def engines_join() -> None:
            if self._client is not None:
                self._client.init_weight_transfer_engine(told)

        with _Beside(engines_join, self._trainer.close) as engines:
            try:
                self._trainer.join(self._deadline)
            except Cancelled:
                engines.wait()  # Raises the engines' error, which cancelled the join.
                raise
            engines.wait()

    def send(self, version: int | None = None) -> int:
        """Makes all engines serve the present weights, and returns their version. Call it on every trainer rank.

        The weights must not change during the call. If it raises, the engines serve the old weights.

        version  Must be greater than every version before. None: the previous version plus one.
        """
        version = self._version + 1 if version is None else version
        self._version = version
        if self._client is not None:
            self._client.start_weight_update()
        try:
            self._publish(version)
            if self._client is not None:
                self._client.finish_weight_update(str(version))
        except BaseException:
            if self._client is not None:
                self._client.give_up_weight_update()
            raise
        return version

    def _publish(self, version: int) -> None:
        publish = self._trainer.publish_async(version, deadline=self._deadline)
        told = {"version": version, "deadline": self._deadline}

        def engines_receive() -> None:
            if self._client is not None:
                self._client.update_weights(told)

        with _Beside(engines_receive, publish.cancel) as engines:
            try:
                publish.committed.wait(self._deadline)
            except Cancelled:
                engines.wait()  # Raises the engines' error, which cancelled the publish.
                raise
            engines.wait()
        for error in publish.outcomes.values():
            if error is not None:
                raise error

    def close(self) -> None:
        """Leaves the job."""
        self._trainer.close()


class _Beside:
    """Runs a call on a thread of its own during a `with` block. wait() raises the call's error.

    failed  Called on that thread after the call has raised.
    """

    def __init__(self, call: Callable[[], None], failed: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._failed = failed
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
            self._failed()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> _Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
