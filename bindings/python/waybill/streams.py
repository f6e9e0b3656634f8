# SPDX-License-Identifier: Apache-2.0
"""Finds the work on a device that a publish comes after."""

from __future__ import annotations

import sys
from typing import Any

from waybill.errors import InvalidArgument


def current_stream(tensor: Any) -> Any:
    """Returns the current stream of a torch tensor's device, or None if there is no such device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
        return None
    return torch.cuda.current_stream(tensor.device)


def wait_for(stream: Any) -> None:
    """Waits until all that is on the stream now is done."""
    if not hasattr(stream, "synchronize"):
        raise InvalidArgument(
            f"stream: {type(stream).__name__} has no synchronize(), and no tensor is on a device"
        )
    stream.synchronize()


def check_device(stream: Any, ordinal: int, device: str) -> None:
    """Raises if a stream or an event says that it is on another GPU than `ordinal`.

    >>> check_device(4096, 0, "GPU 0")
    """
    its = getattr(getattr(stream, "device", None), "index", None)
    if its is not None and its != ordinal:
        raise InvalidArgument(
            f"stream: it is on GPU {its}, and the tensors are on {device}; give the stream of "
            "that GPU whose work writes them"
        )


class RecordedEvent:
    """A CUDA event behind what is on a stream when this is made; `stream` may be the event itself.

    torch destroys an event with its last reference: keep this object until the core has taken the address.

    >>> RecordedEvent(4096).address
    4096
    """

    def __init__(self, stream: Any) -> None:
        """If the stream can only be waited for, waits; the address is 0 then."""
        self._owner = stream
        if isinstance(stream, int):
            self.address = stream
            return
        if hasattr(stream, "record_event"):
            self._owner = stream.record_event()
        address = getattr(self._owner, "cuda_event", None)
        if address is None:
            wait_for(stream)
        self.address = int(address or 0)
