# SPDX-License-Identifier: Apache-2.0
"""An engine core stops itself for an update that asks for it, on a stand-in for vLLM's module of the core."""

import types
from enum import Enum

import pytest

import waybill
from waybill.integrations.vllm.core import stop_within_updates


class PauseState(Enum):
    UNPAUSED = 0
    PAUSED_ALL = 2


class EngineCore:
    """Notes what is done, in order."""

    def __init__(self, fails=False):
        self.done, self.fails = [], fails
        self.scheduler = types.SimpleNamespace(set_pause_state=self.done.append)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        self.done.append(method)
        if self.fails:
            raise RuntimeError("a worker is gone")
        return ["answer"]

    def reset_prefix_cache(self, **how):
        self.done.append(how)

    def reset_encoder_cache(self):
        self.done.append("encoder")


def core_module():
    """A module that nothing was installed in."""
    core = type("EngineCore", (EngineCore,), {"collective_rpc": EngineCore.collective_rpc})
    replica = type("DPEngineCoreProc", (core,), {})
    module = types.SimpleNamespace(EngineCore=core, DPEngineCoreProc=replica, PauseState=PauseState)
    stop_within_updates(module)
    stop_within_updates(module)  # vLLM may load plug-ins several times.
    return module


def update(core, clear_cache=False, **told):
    told |= {"version": 1, "clear_cache": clear_cache}
    return core.collective_rpc("update_weights", None, (), {"update_info": told})


def test_it_stops_before_the_switch_and_stays_so():
    core = core_module().EngineCore()
    assert update(core, stop=True) == ["answer"]
    assert core.done == [PauseState.PAUSED_ALL, "update_weights"]


def test_caches_are_emptied_after_the_switch():
    core = core_module().EngineCore()
    update(core, stop=True, clear_cache=True)
    reset = {"reset_running_requests": True, "reset_connector": True}
    assert core.done == [PauseState.PAUSED_ALL, "update_weights", reset, "encoder"]


def test_it_stays_stopped_if_the_switch_fails():
    core = core_module().EngineCore(fails=True)
    with pytest.raises(RuntimeError, match="a worker is gone"):
        update(core, stop=True)
    assert core.done == [PauseState.PAUSED_ALL, "update_weights"]


def test_replicas_that_share_experts_refuse_before_they_stop():
    core = core_module().DPEngineCoreProc()
    with pytest.raises(waybill.Unimplemented, match="wait for each other"):
        update(core, stop=True)
    assert core.done == []
    update(core)
    assert core.done == ["update_weights"]


def test_nothing_else_stops_it():
    core = core_module().EngineCore()
    assert core.collective_rpc("start_weight_update") == ["answer"]
    core.collective_rpc("update_weights", None, (), {"update_info": [{"version": 1}]})
    update(core, stop=False)
    assert core.done == ["start_weight_update", "update_weights", "update_weights"]
