# SPDX-License-Identifier: Apache-2.0
"""The clients with which a trainer controls engines. An engine stands still only while it switches to a version."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from waybill.errors import Unimplemented
from waybill.integrations.adapters import folder_of


class Client(ABC):
    """Controls one engine. A subclass implements the calls to the engine.

    A version is received while the engine computes. When all of it is there, start_weight_update() stops the engine,
    update_weights() lets its workers vote and copy, and finish_weight_update() or give_up_weight_update() lets it go on.
    """

    # True if the engine ends an update by itself when update_weights() raises, as vLLM does.
    ends_failed_updates: ClassVar[bool] = False

    def __init__(self) -> None:
        # When it was stopped, had a version, and went on; in seconds of the monotonic clock. 0: not in this update.
        self.stopped_at = self.switched_at = self.resumed_at = 0.0
        self._updating = False
        # The workers' groups have this in their names, by which the outcome of a version is found.
        self._name = uuid.uuid4().hex[:12]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of the engine join the job, in groups of this engine's name."""
        self._join({**init_info, "engine": self._name})

    def start_weight_update(self) -> None:
        """Stops generation and begins an update."""
        self._stop()
        try:
            self._start()
        except BaseException:
            self._go_on()
            raise
        self._updating = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Makes every worker vote for the version, and copy it once it is committed."""
        try:
            self._update(update_info)
        except BaseException:
            self._updating = not self.ends_failed_updates
            raise
        self.switched_at = time.monotonic()

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends a successful update and resumes generation."""
        self._finish(weight_version)
        self._updating = False
        self._go_on()

    def install_adapter(self, name: str, version: int) -> None:
        """Makes the engine serve a version of an adapter, which all of its hosts have."""
        self._install_adapter(name, version, folder_of(self._name, version))

    def give_up_weight_update(self) -> None:
        """Ends a failed update and resumes generation with the old weights."""
        try:
            self._end()
        finally:
            self._go_on()

    def stay_paused(self) -> None:
        """Ends an update of which the engine may have a part. The next update resumes generation."""
        self._end()

    def checksums(self) -> dict[str, str]:
        """Returns a checksum of each parameter with which the engine computes, by the engine's own checker."""
        raise Unimplemented(
            f"{self.describe()}: a {type(self).__name__} does not know a checker of the engine's"
        )

    def is_engine_of(self, group: str) -> bool:
        """Returns whether workers of this engine are in the group."""
        return f"-{self._name}-" in group

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return "the engine"

    def _stop(self) -> None:
        self.stopped_at, self.switched_at, self.resumed_at = time.monotonic(), 0.0, 0.0
        self._pause_engine()

    def _go_on(self) -> None:
        self._resume_engine()
        self.resumed_at = time.monotonic()

    def _end(self) -> None:
        updating, self._updating = self._updating, False
        if updating:
            self._finish(None)

    @abstractmethod
    def _join(self, init_info: dict[str, Any]) -> None: ...

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _update(self, update_info: dict[str, Any]) -> None: ...

    @abstractmethod
    def _finish(self, weight_version: str | None) -> None: ...

    def _install_adapter(self, name: str, version: int, folder: str) -> None:
        """Loads an adapter from a folder that peft could have saved."""
        raise Unimplemented(
            f"{self.describe()}: adapters are not supported by a {type(self).__name__}"
        )

    def _pause_engine(self) -> None:  # noqa: B027
        """Stops generation before an update. An engine that is paused already stays so."""

    def _resume_engine(self) -> None:  # noqa: B027
        """Resumes generation after an update."""


def clients_of(given: Any, client_of_one: Callable[[Any], Client]) -> list[Client]:
    """Returns a client for one engine, or for each engine of a list."""
    return [client_of_one(one) for one in (given if isinstance(given, (list, tuple)) else [given])]
