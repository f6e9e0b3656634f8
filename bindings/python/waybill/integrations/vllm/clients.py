"""Clients for vLLM engines: an LLM in this process, a server, or another object with vLLM's four calls."""

from __future__ import annotations

from typing import Any, Literal

from vllm.distributed.weight_transfer.clients import (  # type: ignore[import-not-found, unused-ignore]
    HTTPVLLMWeightSyncClient,
)

from waybill.errors import FailedPrecondition
from waybill.integrations.clients import Client

Pause = Literal["wait", "abort", "keep"]


class VLLMClient(Client):
    """Controls one vLLM engine."""

    ends_failed_updates = True


class OfflineClient(VLLMClient):
    """Controls an `LLM` in this process. Do not call generate() during send_weights().

    It empties the prefix cache after an update, because the cached blocks were computed with the old weights.
    """

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of the engine join the job."""
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


class HTTPClient(VLLMClient):
    """Controls a server: VLLM_SERVER_DEV_MODE=1 vllm serve ... --weight-transfer-config '{"backend": "waybill"}'.

    base_url  "http://engine:8000"
    timeout   In seconds, for each call.
    pause     What happens to running requests when an update begins. "wait": they finish first. "abort": they are
              aborted. "keep": they continue after the update, and keep what the old weights have computed. "wait" and
              "abort" also empty the prefix cache. None: the caller pauses the server before send_weights(), or lets it
              sleep and wakes up its weights; the server then stays as it is.
    """

    def __init__(
        self, base_url: str, timeout: float = 300, *, pause: Pause | None = "wait"
    ) -> None:
        super().__init__()
        self._server = HTTPVLLMWeightSyncClient(base_url, timeout)
        self._pause = pause

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of the engine join the job."""
        self._server.init_weight_transfer_engine(init_info)

    def _pause_engine(self) -> None:
        if self._pause is not None:
            self._server._post(f"pause?mode={self._pause}")
        elif not self._is_paused():
            raise FailedPrecondition(
                f"update the weights of {self._server.base_url}: the server is not paused, and this client was made "
                'with pause=None: use pause="wait", or POST /pause before send_weights()'
            )

    def _start(self) -> None:
        self._server.start_weight_update()

    def _update(self, update_info: dict[str, Any]) -> None:
        self._server.update_weights(update_info)

    def _finish(self, weight_version: str | None) -> None:
        self._server.finish_weight_update(weight_version)

    def _resume_engine(self) -> None:
        if self._pause is not None:
            self._server._post("resume")

    def _is_paused(self) -> bool:
        import requests  # type: ignore[import-untyped, import-not-found, unused-ignore]

        answer = requests.get(f"{self._server.base_url}/is_paused", timeout=self._server.timeout)
        answer.raise_for_status()
        return bool(answer.json()["is_paused"])


class OtherClient(VLLMClient):
    """Controls an engine through another object that has vLLM's four calls. The caller pauses the engine."""

    def __init__(self, client: Any) -> None:
        super().__init__()
        self._client = client

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Makes every worker of the engine join the job."""
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
