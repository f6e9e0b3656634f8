# SPDX-License-Identifier: Apache-2.0
"""What SkyRL lacks on CPUs and under Python 3.11, for every Python process of its test."""

import sys
import types
import typing
from importlib.machinery import ModuleSpec


def install():
    """Puts an empty module in the place of flash attention, and a TypedDict that pydantic takes in the place of Python 3.11's."""
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
    for name in ("flash_attn", "flash_attn.bert_padding"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        # Not used with trainer.remove_microbatch_padding=false.
        module.pad_input = module.unpad_input = None
