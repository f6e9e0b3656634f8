# SPDX-License-Identifier: Apache-2.0
"""Clients for vLLM engines: an LLM in this process, a server, or another object with vLLM's four calls."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from vllm.distributed.weight_transfer.clients import (  # type: ignore[import-not-found, unused-ignore]
    HTTPVLLMWeightSyncClient,
)
from vllm.lora.request import LoRARequest  # type: ignore[import-not-found, unused-ignore]

from waybill.errors import FailedPrecondition
from waybill.integrations.clients import Client

Pause = Literal["wait", "abort", "keep", "at-once"]


class VLLMClient(Client):
    """Controls one vLLM engine."""

    ends_failed_updates = True

    def start_weight_update(self) -> None:
        """Begins an update, which needs no pause, and then stops generation."""
        self._start()
        self._updating = True
        try:
            self._stop()
        except BaseException:
            self._end()
            raise


class OfflineClient(VLLMClient):
    """Controls an `LLM` in this process. Do not call generate() during send_weights().

    It empties the caches of prefixes and of encoded images after an update, because the old weights have computed them.
    """

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self._llm = llm
        # What generate() is given to use the adapter that was sent last.
        self.lora_request: Any = None

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return "the LLM"

    def _join(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def _pause_engine(self) -> None:
        if self._llm.llm_engine.has_unfinished_requests():
            raise FailedPrecondition(
                "update the weights of an LLM: it has unfinished requests; call send_weights() between two calls of "
                "generate()"
            )

    def _start(self) -> None:
        self._llm.start_weight_update()

    def _update(self, update_info: dict[str, Any]) -> None:
        self._llm.update_weights({"update_info": update_info})

    def _finish(self, weight_version: str | None) -> None:
        self._llm.finish_weight_update(weight_version)

    def _resume_engine(self) -> None:
        self._llm.reset_prefix_cache()
        self._llm.llm_engine.reset_encoder_cache()

    def checksums(self) -> dict[str, str]:
        """Returns a checksum of each parameter, by vLLM's checker."""
        ranks = self._llm.collective_rpc("compute_weight_checksums")
        return {name: checksum for rank in ranks for name, checksum in rank.items()}

    def _install_adapter(self, name: str, version: int, folder: str) -> None:
        # Cached blocks are found by the folder too, so that those of the version before are not.
        number = zlib.crc32(name.encode()) or 1
        if not self._llm.llm_engine.add_lora(LoRARequest(name, number, folder, load_inplace=True)):
            raise FailedPrecondition(f"load adapter {name} from {folder}: the LLM refuses it")
        self.lora_request = LoRARequest(name, number, folder)


class HTTPClient(VLLMClient):
    """Controls a server: VLLM_SERVER_DEV_MODE=1 vllm serve ... --weight-transfer-config '{"backend": "waybill"}'.

    base_url  "http://engine:8000"
    timeout   In seconds, for each call.
    pause     What happens to running requests when the engine switches. "keep": they wait, and go on after the switch.
              "wait": they finish first, with the old weights. "abort": they are aborted. New requests wait with "keep",
              and get status 503 otherwise. "at-once": as "keep", but the engine stops itself within the call that switches,
              without vLLM's own pause, which waits for what is being computed and 20 ms more; not for experts that are
              dealt over data-parallel replicas. None: the caller pauses the server before send_weights(), or lets it sleep
              and wakes up its weights; the server then stays as it is.
    clear_cache
              Whether the KV cache is emptied, in each of these modes. With "keep", running requests are then computed
              again with the new weights. False: they, and new requests with the same prefix, go on with what the old
              weights have computed.
    """

    def __init__(
        self,
        base_url: str,
        timeout: float = 300,
        *,
        pause: Pause | None = "keep",
        clear_cache: bool = True,
    ) -> None:
        super().__init__()
        self._server = HTTPVLLMWeightSyncClient(base_url, timeout)
        self._pause = pause
        self._clear_cache = clear_cache

    def describe(self) -> str:
        """Returns a name of the engine for errors."""
        return str(self._server.base_url)

    def _join(self, init_info: dict[str, Any]) -> None:
        with _told_where_to_look():
            self._server.init_weight_transfer_engine(init_info)

    def _pause_engine(self) -> None:
        if self._pause == "at-once":
            return  # The update stops it.
        if self._pause is not None:
            clear = "true" if self._clear_cache else "false"
            self._server._post(f"pause?mode={self._pause}&clear_cache={clear}")
        elif not self._is_paused():
            raise FailedPrecondition(
                f"update the weights of {self._server.base_url}: the server is not paused, and this client was made "
                'with pause=None: use pause="wait", or POST /pause before send_weights()'
            )

    def _start(self) -> None:
        with _told_where_to_look():
            self._server.start_weight_update()

    def _update(self, update_info: dict[str, Any]) -> None:
        if self._pause == "at-once":
            update_info = {**update_info, "stop": True, "clear_cache": self._clear_cache}
        with _told_where_to_look():
            self._server.update_weights(update_info)

    def _finish(self, weight_version: str | None) -> None:
        with _told_where_to_look():
            self._server.finish_weight_update(weight_version)

    def _resume_engine(self) -> None:
        if self._pause is not None:
            self._server._post("resume")

    def checksums(self) -> dict[str, str]:
        """Returns a checksum of each parameter, by vLLM's checker."""
        return dict(self._ask("weight_checker", {"action": "checksum"}).json()["checksums"])

    def _install_adapter(self, name: str, version: int, folder: str) -> None:
        self._ask(
            "v1/load_lora_adapter",
            {"lora_name": name, "lora_path": folder, "load_inplace": True},
            missing="start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora",
        )

    def _ask(self, path: str, body: dict[str, Any], missing: str | None = None) -> Any:
        """Posts what vLLM's own client cannot, and returns the answer.

        missing  The remedy if the server does not know the path.
        """
        import requests  # type: ignore[import-untyped, import-not-found, unused-ignore]

        url = f"{self._server.base_url}/{path}"
        answer = requests.post(url, json=body, timeout=self._server.timeout)
        if not answer.ok:
            remedy = missing if answer.status_code == 404 else None
            raise FailedPrecondition(f"{url}: HTTP {answer.status_code}: {remedy or answer.text}")
        return answer

    def _is_paused(self) -> bool:
        import requests  # type: ignore[import-untyped, import-not-found, unused-ignore]

        answer = requests.get(f"{self._server.base_url}/is_paused", timeout=self._server.timeout)
        answer.raise_for_status()
        return bool(answer.json()["is_paused"])


@contextmanager
def _told_where_to_look() -> Iterator[None]:
    """Adds to an error of a server, which keeps its reason to itself, where that is."""
    import requests  # type: ignore[import-untyped, import-not-found, unused-ignore]

    try:
        yield
    except requests.HTTPError as error:
        raise FailedPrecondition(f"{error}: the server's log has the reason") from error


class OtherClient(VLLMClient):
    """Controls an engine through another object that has vLLM's four calls. The caller pauses the engine."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client

    def _join(self, init_info: dict[str, Any]) -> None:
        self._client.init_weight_transfer_engine(init_info)

    def _start(self) -> None:
        self._client.start_weight_update()

    def _update(self, update_info: dict[str, Any]) -> None:
        self._client.update_weights(update_info)

    def _finish(self, weight_version: str | None) -> None:
        self._client.finish_weight_update(weight_version)


def client_of_one(given: Any) -> Client:
    """Returns a client for an LLM, for one of vLLM's clients, or for a client of this module."""
    if isinstance(given, Client):
        return given
    if hasattr(given, "llm_engine"):
        return OfflineClient(given)
    if type(given) is HTTPVLLMWeightSyncClient:
        return HTTPClient(given.base_url, given.timeout)
    return OtherClient(given)
