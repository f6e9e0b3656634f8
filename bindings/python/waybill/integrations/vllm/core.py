# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine core, which schedules steps: it stops itself for an update that asks for it."""

from __future__ import annotations

import functools
from typing import Any

from waybill.errors import Unimplemented


def stop_within_updates(module: Any) -> None:
    """Makes engine cores stop within a call of update_weights() whose arguments have "stop".

    Workers do what they are called for in the order of the calls, so that on all ranks the switch is between the same two steps: what
    is being computed need not end first. The core stays stopped until it is resumed, so that no step follows a switch that failed.

    module  vllm.v1.engine.core.
    """
    call = module.EngineCore.collective_rpc
    if hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def stop_and_call(
        core: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        told = kwargs["update_info"] if method == "update_weights" and kwargs else None
        if not isinstance(told, dict) or not told.get("stop"):
            return call(core, method, timeout, args, kwargs)
        if isinstance(core, module.DPEngineCoreProc):
            raise Unimplemented(
                'stop at once: the replicas of this engine share experts, and wait for each other in each step: use pause="keep"'
            )
        core.scheduler.set_pause_state(module.PauseState.PAUSED_ALL)
        answers = call(core, method, timeout, args, kwargs)
        if told["clear_cache"]:
            core.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            core.reset_encoder_cache()
        return answers

    module.EngineCore.collective_rpc = stop_and_call
