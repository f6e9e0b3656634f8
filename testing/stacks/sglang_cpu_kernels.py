# SPDX-License-Identifier: Apache-2.0
"""Lets the published SGLang run without a GPU, and without packages that exist for GPUs only.

`run` makes every Python process of the environment import this module, by a .pth file.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

# Packages of kernels that SGLang imports and does not call on CPUs.
ABSENT = ("sgl_kernel", "deep_gemm")


class _Absent(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__, self.__file__, self.__version__ = [], name, "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class _CPUOperations:
    """What models look for when they are imported. Nothing calls these operations."""

    def __getattr__(self, name):
        if not name.endswith("_cpu"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Absent(spec.name)

    def exec_module(self, module):
        if module.__name__ == "sgl_kernel":
            import torch

            torch.ops.sgl_kernel = _CPUOperations()
            _pin_nothing()


def _unpinned(make, *args, pin_memory=False, **options):
    return make(*args, **options)


def _pin_nothing():
    """Lets SGLang's LoRA layers ask for pinned memory, which torch has on GPUs only."""
    import torch

    torch.utils._device._device_constructors()  # torch remembers the functions that make tensors.
    for name in ("tensor", "zeros"):
        make = getattr(torch, name)
        setattr(torch, name, partial(_unpinned, make))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def install():
    """Puts empty modules in place of the absent packages."""
    sys.meta_path.insert(0, _Finder())


def write_digests(model, named_tensors):
    """Writes the digests of a model's parameters to a file. It is a custom weight loader of SGLang.

    named_tensors  One tensor; its name is that of the file, to which the rank is appended.
    """
    from checkpoints import digests
    from sglang.srt.runtime_context import get_parallel

    ((path, _),) = named_tensors
    Path(f"{path}{get_parallel().tp_rank}").write_text(json.dumps(digests(model)))
