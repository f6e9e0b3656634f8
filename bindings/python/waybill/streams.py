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


def event_behind(stream: Any) -> int:
    """Returns the address of a CUDA event behind what is on the stream now; `stream` may be the event itself.

    If the stream can only be waited for, it waits and returns 0.

    >>> event_behind(4096)
    4096
    """
    if isinstance(stream, int):
        return stream
    event = stream.record_event() if hasattr(stream, "record_event") else stream
    address = getattr(event, "cuda_event", None)
    if address is None:
        wait_for(stream)
        return 0
    return int(address)
