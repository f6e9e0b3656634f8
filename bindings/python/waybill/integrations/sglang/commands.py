# SPDX-License-Identifier: Apache-2.0
"""The commands that a trainer gives to the custom weight loader of an SGLang engine.

SGLang passes a list of named tensors to the loader. A command is one tensor without elements, whose name is JSON.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

# The value of --custom-weight-loader, which is also the load format in requests to SGLang.
LOADER = "waybill.integrations.sglang.receive"


class _NoElements:
    """Unpickles as a torch tensor without elements, on any host. torch's own pickles would need shared memory."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        import torch  # type: ignore[import-not-found, unused-ignore]

        return torch.Tensor, ()


def named_tensors_of(command: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns a command as an sglang.Engine takes named tensors."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    return [(json.dumps(command), torch.Tensor())]


def serialise(command: dict[str, Any]) -> bytes:
    """Returns a command as SGLang's servers take serialised tensors."""
    return pickle.dumps([(json.dumps(command), _NoElements())])


def unpack(named_tensors: Any) -> dict[str, Any]:
    """Returns the command in what a custom weight loader was given."""
    ((name, _),) = named_tensors
    command: dict[str, Any] = json.loads(name)
    return command
