# SPDX-License-Identifier: Apache-2.0
"""Snapshots: arrays over the version that a worker shows, to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from waybill import _waybill
from waybill.dtypes import FRAMEWORK_NAMES, NAMES
from waybill.errors import FailedPrecondition
from waybill.holdings import Holding, Holdings
from waybill.memory import DEVICE


class GpuBytes:
    """Bytes of a snapshot in a GPU's memory, for torch, CuPy and others that take CUDA's array interface.

    It keeps the snapshot for as long as it lives.
    """

    def __init__(self, region: _waybill.SnapshotBytes, offset_bytes: int, size_bytes: int) -> None:
        self._region = region
        # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3. No stream: the bytes are
        # there when the snapshot is.
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (region.address + offset_bytes, True),
            "strides": None,
            "stream": None,
            "version": 3,
        }


class Snapshot:
    """Arrays of one version, by the names that the worker added. Nothing is copied.

    An update that needs the memory waits until the snapshot is closed and its arrays are gone.
    """

    def __init__(
        self,
        snapshot: _waybill.Snapshot,
        holdings: Holdings,
        buffers_on_gpu: bool,
        gpu: Callable[[], int],
    ) -> None:
        self._snapshot: _waybill.Snapshot | None = snapshot
        self._holdings = holdings
        self._buffers_on_gpu = buffers_on_gpu
        self._gpu = gpu  # Which one the rank is on.
        self._version = snapshot.version

    @property
    def version(self) -> int:
        """The version of the arrays."""
        return self._version

    def __iter__(self) -> Iterator[str]:
        return iter(self._holdings.names())

    def _region(self, index: int, owner: object) -> _waybill.SnapshotBytes:
        if self._snapshot is None:
            raise FailedPrecondition("the snapshot is closed")
        return self._snapshot.region(index, owner)

    @staticmethod
    def _range(holding: Holding) -> tuple[int, int]:
        """Returns which bytes [begin, end) of its region an array lies in."""
        begin, end = holding.memory.span()
        first = holding.offset_bytes + begin - holding.memory.address
        return first, first + end - begin

    def _bytes(self, holding: Holding) -> memoryview:
        if holding.memory.kind == DEVICE:
            raise FailedPrecondition(
                f'"{holding.name}" is in the memory of a GPU: take torch() or gpu_memory()'
            )
        if holding.memory.empty:
            return memoryview(b"")
        first, last = self._range(holding)
        return memoryview(self._region(holding.region, holding.memory.owner))[first:last]

    def region(self, index: int = 0) -> memoryview:
        """Returns the bytes of a region of the manifest, read-only. Use it after add_manifest()."""
        if self._buffers_on_gpu:
            raise FailedPrecondition(
                "the buffers are in the memory of a GPU: add() tensors by name"
            )
        return memoryview(self._region(index, self._holdings.owner(index)))

    def memory(self, name: str) -> memoryview:
        """Returns the bytes of an array in host memory, read-only."""
        return self._bytes(self._holdings[name])

    def gpu_memory(self, name: str) -> GpuBytes:
        """Returns the bytes of an array in a GPU's memory, by CUDA's array interface. Do not write to them."""
        holding = self._holdings[name]
        if holding.memory.kind != DEVICE:
            raise FailedPrecondition(f'"{name}" is in host memory: take memory()')
        first, last = self._range(holding)
        return GpuBytes(self._region(holding.region, holding.memory.owner), first, last - first)

    def numpy(self, name: str) -> Any:
        """Returns a read-only numpy array of host memory. It takes the dtypes that numpy lacks from ml_dtypes."""
        import numpy

        holding = self._holdings[name]
        memory = holding.memory
        dtype = numpy.dtype(self._numpy_dtype(memory.dtype))
        return numpy.ndarray(
            memory.shape,
            dtype,
            self._bytes(holding),
            strides=[stride * dtype.itemsize for stride in memory.strides],
        )

    def __getitem__(self, name: str) -> Any:
        """Does the same as numpy()."""
        return self.numpy(name)

    def torch(self, name: str) -> Any:
        """Returns a torch tensor over the same memory. torch has no read-only tensors: do not write to it."""
        import importlib
        import warnings

        torch = importlib.import_module("torch")
        holding = self._holdings[name]
        memory = holding.memory
        dtype = getattr(torch, FRAMEWORK_NAMES[NAMES[memory.dtype]])
        device = torch.device("cuda", self._gpu()) if memory.kind == DEVICE else torch.device("cpu")
        if memory.empty:
            return torch.empty(memory.shape, dtype=dtype, device=device)
        if memory.kind == DEVICE:
            flat = torch.as_tensor(self.gpu_memory(name), device=device).view(dtype)
            return flat.as_strided(memory.shape, memory.strides)
        data = self._bytes(holding)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype)
        return flat.as_strided(memory.shape, memory.strides)

    def _numpy_dtype(self, number: int) -> Any:
        name = FRAMEWORK_NAMES[NAMES[number]]
        if NAMES[number] == "BF16" or NAMES[number].startswith("F8"):
            import ml_dtypes

            return getattr(ml_dtypes, name)
        return name

    def close(self) -> None:
        """Lets updates use the memory again, once the arrays are gone too."""
        self._snapshot = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
