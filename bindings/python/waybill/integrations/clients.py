"""The clients with which a trainer controls engines: four calls around each update, for one engine or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar


class Client(ABC):
    """Controls one engine.

    start_weight_update() begins an update, and finish_weight_update() or give_up_weight_update() ends it. A subclass
    implements the calls to the engine.
    """

    # True if the engine ends an update by itself when update_weights() raises, as vLLM does.
    ends_failed_updates: ClassVar[bool] = False

    def __init__(self) -> None:
        self._updating = False

    def start_weight_update(self) -> None:
        """Stops generation and begins an update."""
        self._pause_engine()
        try:
            self._start()
        except BaseException:
            self._resume_engine()
            raise
        self._updating = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Makes every worker of the engine receive the version."""
        try:
            self._update(update_info)
        except BaseException:
            self._updating = not self.ends_failed_updates
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends a successful update and resumes generation."""
        self._finish(weight_version)
        self._updating = False
        self._resume_engine()

    def give_up_weight_update(self) -> None:
        """Ends a failed update and resumes generation with the old weights."""
        try:
            if self._updating:
                self._finish(None)
        finally:
            self._updating = False
            self._resume_engine()

    @abstractmethod
    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of the engine join the job."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _update(self, update_info: dict[str, Any]) -> None: ...

    @abstractmethod
    def _finish(self, weight_version: str | None) -> None: ...

    def _pause_engine(self) -> None:  # noqa: B027
        """Stops generation before an update."""

    def _resume_engine(self) -> None:  # noqa: B027
        """Resumes generation after an update."""


class Clients:
    """Controls several engines. Each call goes to all of them at once; an error is raised after all calls have ended."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of every engine join the job."""
        self._all("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        """Stops generation and begins an update in all engines, or in none."""
        try:
            self._all("start_weight_update")
        except BaseException:
            for client in self._clients:
                if client._updating:
                    client.give_up_weight_update()
            raise

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Makes every worker of every engine receive the version."""
        self._all("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends a successful update and resumes generation."""
        self._all("finish_weight_update", weight_version)

    def give_up_weight_update(self) -> None:
        """Ends a failed update and resumes generation with the old weights."""
        self._all("give_up_weight_update")

    def _all(self, call: str, *arguments: Any) -> None:
        with ThreadPoolExecutor(len(self._clients)) as pool:
            calls = [pool.submit(getattr(client, call), *arguments) for client in self._clients]
        for done in calls:
            done.result()


def client_of(given: Any, client_of_one: Callable[[Any], Client]) -> Client | Clients:
    """Returns a client for one engine, or for each engine of a list."""
    if isinstance(given, (list, tuple)):
        return Clients([client_of_one(one) for one in given])
    return client_of_one(given)
