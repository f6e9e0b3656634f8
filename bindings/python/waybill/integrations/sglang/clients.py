# SPDX-License-Identifier: Apache-2.0
"""Clients for SGLang engines: servers over HTTP, and sglang.Engine objects in this process."""

from __future__ import annotations

import base64
import contextlib
import json
from abc import abstractmethod
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from waybill.errors import FailedPrecondition, Unimplemented
from waybill.integrations.clients import Client
from waybill.integrations.sglang.commands import LOADER, named_tensors_of, serialise

Pause = Literal["abort", "retract", "in_place"]


class SGLangClient(Client):
    """Controls one SGLang engine, which was launched with --custom-weight-loader waybill.integrations.sglang.receive."""

    def __init__(self) -> None:
        super().__init__()
        self._adapters: list[str] = []  # Those that are loaded, the oldest first.

    def _join(self, init_info: dict[str, Any]) -> None:
        options = self._options()
        for option, allowed, why in (
            ("pp_size", 1, "a stage would wait for the next one, which hears of an update later"),
            ("enable_eplb", False, "experts move, and a version would come where they were"),
        ):
            if options.get(option, allowed) != allowed:
                raise Unimplemented(
                    f"join {self.describe()}: {option} is {options[option]}, and has to be {allowed}: {why}"
                )
        if init_info.get("adapter") is not None and not options["enable_lora"]:
            raise FailedPrecondition(
                f"join {self.describe()}: the trainers publish an adapter, and the engine serves none: launch it with "
                "--enable-lora"
            )
        # An update does not ask for it, because the engine stands still then.
        self._ranks = int(options["tp_size"])
        with contextlib.suppress(FailedPrecondition):
            self._finish(None)  # Of an update that a trainer has left open because it died.
        self._start()
        try:
            self._load({"do": "join", **init_info}, flush_cache=False)
        finally:
            self._finish(None)

    def _install_adapter(self, name: str, version: int, folder: str) -> None:
        # SGLang replaces no adapter, and would let a request fail that came between unloading one and loading the next of its
        # name. Requests may still run with the version before.
        self._load_adapter(f"{name}-{version}", folder)
        self._adapters.append(f"{name}-{version}")
        if len(self._adapters) > 2:
            self._unload_adapter(self._adapters.pop(0))

    def _update(self, update_info: dict[str, Any]) -> None:
        self._load({"do": "update", **update_info}, flush_cache=True)

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Returns SGLang's options, by name."""

    @abstractmethod
    def _load(self, command: dict[str, Any], *, flush_cache: bool) -> None:
        """Calls the custom weight loader on every worker."""

    @abstractmethod
    def _load_adapter(self, name: str, folder: str) -> None: ...

    @abstractmethod
    def _unload_adapter(self, name: str) -> None: ...


class HTTPClient(SGLangClient):
    """Controls a server.

    base_url  "http://engine:30000"
    timeout   In seconds, for each call.
    pause     What happens to running requests when the engine switches. "retract": they wait, and are computed again with the
              new weights. "abort": they are aborted. "in_place": they continue with what the old weights have computed, and
              the cache is kept. None: the caller pauses the server before send_weights().
    api_key   The server's --admin-api-key or --api-key, if it has one.
    """

    def __init__(
        self,
        base_url: str,
        timeout: float = 300,
        *,
        pause: Pause | None = "retract",
        api_key: str | None = None,
    ) -> None:
        super().__init__()
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._pause = pause
        self._api_key = api_key

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return self.base_url

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = self._call("server_info", None)
        return options

    def _pause_engine(self) -> None:
        if self._pause is not None:
            self._call("pause_generation", {"mode": self._pause})

    def _start(self) -> None:
        self._call("begin_weight_update", {"selector": "target"})

    def _load(self, command: dict[str, Any], *, flush_cache: bool) -> None:
        serialised = base64.b64encode(serialise(command)).decode()
        body = {
            "serialized_named_tensors": [serialised] * self._ranks,
            "load_format": LOADER,
            "flush_cache": flush_cache and self._pause != "in_place",
            "selector": "target",
        }
        self._call("update_weights_from_tensor", body)

    def _finish(self, weight_version: str | None) -> None:
        self._call("end_weight_update", {})
        if weight_version is not None:
            # Not with the weights: a worker may refuse them, and then the engine serves the version before.
            label = {"new_version": weight_version, "abort_all_requests": False}
            self._call("update_weight_version", label)

    def _resume_engine(self) -> None:
        if self._pause is not None:
            self._call("continue_generation", {})

    def _load_adapter(self, name: str, folder: str) -> None:
        self._call("load_lora_adapter", {"lora_name": name, "lora_path": folder})

    def _unload_adapter(self, name: str) -> None:
        self._call("unload_lora_adapter", {"lora_name": name})

    def checksums(self) -> dict[str, str]:
        """Returns a checksum of each parameter, by SGLang's checker."""
        ranks = self._call("weights_checker", {"action": "checksum"})["ranks"]
        return {
            f"rank {rank}: {name}": checksum
            for rank, its in enumerate(ranks)
            for name, checksum in its["checksums"].items()
        }

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.base_url}/{path}", data, headers)
        try:
            with urlopen(request, timeout=self._timeout) as answer:
                said = answer.read()
        except HTTPError as error:
            raise FailedPrecondition(
                f"{self.base_url}/{path}: HTTP {error.code}: {error.read().decode(errors='replace')}"
            ) from error
        return json.loads(said) if said.startswith(b"{") else None


class EngineClient(SGLangClient):
    """Controls an sglang.Engine in this process. Do not call generate() during send_weights()."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self._engine = engine

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return "the sglang.Engine"

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = self._engine.server_args.resolved_dict()
        return options

    def _start(self) -> None:
        _check("begin_weight_update", self._engine.begin_weight_update("target"))

    def _load(self, command: dict[str, Any], *, flush_cache: bool) -> None:
        answer = self._engine.update_weights_from_tensor(
            named_tensors_of(command), load_format=LOADER, flush_cache=flush_cache
        )
        _check("update_weights_from_tensor", answer)

    def _finish(self, weight_version: str | None) -> None:
        _check("end_weight_update", self._engine.end_weight_update())

    def _load_adapter(self, name: str, folder: str) -> None:
        answer = self._engine.load_lora_adapter(name, folder)
        _check("load_lora_adapter", (answer.success, answer.error_message))

    def _unload_adapter(self, name: str) -> None:
        answer = self._engine.unload_lora_adapter(name)
        _check("unload_lora_adapter", (answer.success, answer.error_message))


def _check(call: str, answer: Any) -> None:
    success, message = answer[:2]
    if not success:
        raise FailedPrecondition(f"sglang.Engine: {call}: {message}")


def client_of_one(given: Any) -> Client:
    """Returns a client for an address, an sglang.Engine, or a client of this module."""
    if isinstance(given, Client):
        return given
    return HTTPClient(given) if isinstance(given, str) else EngineClient(given)
