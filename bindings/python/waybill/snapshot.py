"""Snapshots: read-only arrays over the version that a worker shows."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from waybill import _waybill
from waybill.dtypes import FRAMEWORK_NAMES, NAMES
from waybill.errors import FailedPrecondition
from waybill.holdings import Holding, Holdings


class Snapshot:
    """Arrays of one version, by the names that the worker added. Nothing is copied.

    An update that needs the memory waits until the snapshot is closed and its arrays are gone.
    """

    def __init__(self, snapshot: _waybill.Snapshot, holdings: Holdings) -> None:
        self._snapshot: _waybill.Snapshot | None = snapshot
        self._holdings = holdings
        self._version = snapshot.version

    @property
    def version(self) -> int:
        """The version of the arrays."""
        return self._version

    def __iter__(self) -> Iterator[str]:
        return iter(self._holdings.names())

    def _bytes(self, holding: Holding) -> memoryview:
        if self._snapshot is None:
            raise FailedPrecondition("the snapshot is closed")
        memory = holding.memory
        if memory.empty:
            return memoryview(b"")
        region = memoryview(self._snapshot.region(holding.region, memory.owner))
        begin, end = memory.span()
        first = holding.offset_bytes + begin - memory.address
        return region[first : first + end - begin]

    def region(self, index: int = 0) -> memoryview:
        """Returns the bytes of a region of the manifest, read-only. Use it after add_manifest()."""
        if self._snapshot is None:
            raise FailedPrecondition("the snapshot is closed")
        return memoryview(self._snapshot.region(index, self._holdings.owner(index)))

    def memory(self, name: str) -> memoryview:
        """Returns the bytes of an array, read-only."""
        return self._bytes(self._holdings[name])

    def numpy(self, name: str) -> Any:
        """Returns a read-only numpy array. It takes the dtypes that numpy lacks from ml_dtypes."""
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
        data = self._bytes(holding)
        if memory.empty:
            return torch.empty(memory.shape, dtype=dtype)
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
