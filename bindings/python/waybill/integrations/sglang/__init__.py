# SPDX-License-Identifier: Apache-2.0
"""Connects SGLang to Waybill: a custom weight loader for engines, and a sender for trainers.

The engine is launched with one more argument:

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader waybill.integrations.sglang.receive

Every trainer rank runs the following. `engines` are addresses of servers, or sglang.Engine objects in this process:

    from waybill.integrations.sglang import WeightSender

    sender = WeightSender("controller:7070", model, engines=["http://engine:30000"])
    for step in range(steps):
        optimizer.step()
        sender.send_weights()

docs/integrations/sglang.md says which versions were tested, and which features were not.
"""

from waybill.integrations.sglang.clients import EngineClient, HTTPClient
from waybill.integrations.sglang.engine import receive
from waybill.integrations.sglang.trainer import WeightSender

__all__ = ["EngineClient", "HTTPClient", "WeightSender", "receive"]
