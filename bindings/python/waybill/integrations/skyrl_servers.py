# SPDX-License-Identifier: Apache-2.0
"""Lets SkyRL 0.3.0, which was written for vLLM 0.23, run servers of vLLM 0.33: Waybill needs the weight transfer of the latter."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from typing import Any

from skyrl.backends.skyrl_train.inference_servers import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    vllm_server_actor,
)
from skyrl.train.generators.skyrl_gym_generator import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    SkyRLGymGenerator,
)

# The module in which SkyRL looks for vLLM's arguments.
_ARGUMENTS = "vllm.entrypoints.openai.cli_args"


class Server(vllm_server_actor.VLLMServerActor):  # type: ignore[misc, unused-ignore]
    """SkyRL's actor of a server, with a socket as vLLM 0.33 makes it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        create = vllm_server_actor.create_server_socket
        vllm_server_actor.create_server_socket = functools.partial(create, reuse_port=False)


def install_servers(cfg: Any) -> None:
    """Makes the servers that SkyRL starts from this process receive weights through Waybill, and answer what SkyRL asks."""
    arguments = cfg.generator.inference_engine.engine_init_kwargs
    arguments["weight_transfer_config"] = {"backend": "waybill"}
    arguments.setdefault("enable_scale_out", True)  # The endpoint by which SkyRL generates.
    if importlib.util.find_spec(_ARGUMENTS) is None:
        from vllm.entrypoints.common import (  # type: ignore[import-not-found, unused-ignore]
            cli_args,
        )

        sys.modules[_ARGUMENTS] = cli_args
    vllm_server_actor.VLLMServerActor = Server
    SkyRLGymGenerator._compute_cache_salt = _salt_of(SkyRLGymGenerator._compute_cache_salt)


def _salt_of(compute: Any) -> Any:
    """Returns a method that hashes SkyRL's salt for the prefix cache, whose "@" and "/" vLLM 0.33 refuses."""

    @functools.wraps(compute)
    def compute_cache_salt(self: Any) -> str | None:
        salt = compute(self)
        return None if salt is None else hashlib.sha256(salt.encode()).hexdigest()

    return compute_cache_salt
