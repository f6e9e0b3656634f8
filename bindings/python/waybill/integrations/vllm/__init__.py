# SPDX-License-Identifier: Apache-2.0
"""Connects vLLM to Waybill: a backend of vLLM's weight transfer, for engines and for trainers.

The engine needs one argument. vLLM finds the backend by its entry point once waybill is installed:

    llm = LLM(model, weight_transfer_config={"backend": "waybill"})

Every trainer rank runs the following. `client` is the LLM itself, or HTTPClient("http://engine:8000") for a server:

    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ModuleSource
    from waybill.integrations.vllm import WaybillInit

    engine = WeightTransferTrainerFactory.trainer_init(
        WaybillInit("controller:7070"), client=client, source=ModuleSource(model)
    )
    for step in range(steps):
        optimizer.step()
        engine.send_weights()

docs/integrations/vllm.md says which versions were tested, and which features were not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waybill.integrations.vllm.clients import HTTPClient, OfflineClient
    from waybill.integrations.vllm.trainer import ExportSource, WaybillInit

__all__ = ["ExportSource", "HTTPClient", "OfflineClient", "WaybillInit", "register"]

_PACKAGE = "waybill.integrations.vllm"
_HOMES = {
    "ExportSource": "trainer",
    "HTTPClient": "clients",
    "OfflineClient": "clients",
    "WaybillInit": "trainer",
}


def __getattr__(name: str) -> Any:
    """Imports vLLM with the first name that needs it, and registers the backend.

    A process that runs trainers only loads no plug-ins of vLLM, so the entry point alone would not be enough.
    """
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
    register()
    return getattr(importlib.import_module(f"{_PACKAGE}.{_HOMES[name]}"), name)


def register() -> None:
    """Registers the backend with vLLM. vLLM calls this in each of its processes, possibly several times."""
    import sys

    from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found, unused-ignore]
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )

    if "waybill" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            "waybill", f"{_PACKAGE}.engine", "WaybillEngine"
        )
    if "waybill" not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            "waybill", f"{_PACKAGE}.trainer", "WaybillTrainer"
        )
    if "vllm.v1.engine.core" in sys.modules:  # This process has an engine's core.
        from waybill.integrations.vllm.core import stop_within_updates

        stop_within_updates(sys.modules["vllm.v1.engine.core"])
