# SPDX-License-Identifier: Apache-2.0
"""Finds where a tensor lies: by torch, numpy, DLPack (JAX and others) or the buffer protocol. Nothing is copied."""

from __future__ import annotations

import sys
from typing import Any

from waybill import _waybill
from waybill.dtypes import buffer_number, dlpack_number, dtype_number
from waybill.errors import InvalidArgument

HOST, DEVICE = 1, 2

# DLPack's types of devices; 3 is host memory that CUDA has pinned.
_DLPACK_KINDS = {1: HOST, 2: DEVICE, 3: HOST, 13: DEVICE}


class Memory:
    """One array in memory.

    `strides` are in elements. `storage` is equal for arrays that are parts of one allocation, as far as is
    known. `owner` keeps the memory alive.
    """

    __slots__ = ("address", "dtype", "kind", "owner", "read_only", "shape", "storage", "strides")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: int,
        *,
        owner: object,
        kind: int = HOST,
        read_only: bool = False,
        storage: int | None = None,
    ) -> None:
        self.address = address
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.owner = owner
        self.kind = kind
        self.read_only = read_only
        self.storage = address if storage is None else storage

    @property
    def empty(self) -> bool:
        """Whether the array has no elements."""
        return 0 in self.shape

    @property
    def dense(self) -> bool:
        """Whether the elements are contiguous, with the last dimension fastest."""
        pairs = zip(self.shape, self.strides, dense_strides(self.shape))
        return all(extent == 1 or stride == wanted for extent, stride, wanted in pairs)

    def stretched(self) -> int | None:
        """Returns the dimension of the smallest stride that leaves holes between the elements, or None."""
        step = 1
        by_stride = sorted(zip(map(abs, self.strides), range(len(self.shape)), self.shape))
        for stride, dimension, extent in by_stride:
            if extent == 1:
                continue
            if stride != step:
                return dimension
            step *= extent
        return None

    def span(self) -> tuple[int, int]:
        """Returns the addresses [begin, end) between which the elements lie."""
        lowest = highest = 0  # In elements from the address.
        for extent, stride in zip(self.shape, self.strides):
            if stride < 0:
                lowest += (extent - 1) * stride
            else:
                highest += (extent - 1) * stride
        size = _waybill.dtype_size(self.dtype)
        return self.address + size * lowest, self.address + size * (highest + 1)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a dense array, in elements.

    >>> dense_strides((4, 3, 2))
    (6, 2, 1)
    """
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def of_torch(tensor: Any) -> bool:
    """Returns whether this is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def torch_address(tensor: Any) -> int:
    """Returns the address of a torch tensor's elements, or 0 if it has none."""
    address: int = tensor.data_ptr()
    return address


def torch_changes(tensor: Any) -> int | None:
    """Returns how often a torch tensor was written, or None where torch does not count (in inference mode)."""
    return None if tensor.is_inference() else int(tensor._version)


def _read_torch(tensor: Any) -> Memory:
    device = tensor.device.type
    if device not in ("cpu", "cuda"):
        raise InvalidArgument(f"a tensor on device {device!r} has no memory that can be lent")
    return Memory(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        dtype_number(tensor.dtype),
        owner=tensor.detach(),  # It keeps the storage when the tensor gets other data.
        kind=DEVICE if device == "cuda" else HOST,
        storage=tensor.untyped_storage().data_ptr(),
    )


def _read_numpy(array: Any) -> Memory:
    if not array.dtype.isnative:
        raise InvalidArgument(f"dtype {array.dtype} is not in this host's byte order")
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidArgument(
            f"strides {array.strides} bytes are no multiples of its elements' {size} bytes"
        )
    root = array
    while type(root.base) is type(array):
        root = root.base
    return Memory(
        array.ctypes.data,
        array.shape,
        tuple(stride // size for stride in array.strides),
        dtype_number(array.dtype),
        owner=array,
        read_only=not array.flags.writeable,
        storage=root.ctypes.data,
    )


def _read_dlpack(tensor: Any) -> Memory:
    try:
        capsule = tensor.__dlpack__(max_version=(1, 0))
    except TypeError:  # From before version 1.
        capsule = tensor.__dlpack__()
    address, device, _, dtype, shape, strides, read_only, owner = _waybill.read_dlpack(capsule)
    if device not in _DLPACK_KINDS:
        raise InvalidArgument(f"memory of DLPack's device type {device} cannot be lent")
    return Memory(
        address,
        shape,
        dense_strides(shape) if strides is None else strides,
        dlpack_number(*dtype),
        owner=(tensor, owner),
        kind=_DLPACK_KINDS[device],
        read_only=read_only,
    )


def _read_buffer(tensor: Any) -> Memory:
    view = memoryview(tensor)
    address, _, read_only = _waybill.read_buffer(view)
    size = view.itemsize
    return Memory(
        address,
        view.shape or (),
        tuple(stride // size for stride in view.strides or ()),
        buffer_number(view.format),
        owner=view,
        read_only=read_only,
    )


def memory_of(tensor: Any) -> Memory:
    """Returns where a tensor lies. It is never copied.

    >>> memory_of(bytearray(6)).shape
    (6,)
    """
    if of_torch(tensor):
        return _read_torch(tensor)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _read_numpy(tensor)
    if hasattr(tensor, "__dlpack__"):
        return _read_dlpack(tensor)
    try:
        return _read_buffer(tensor)
    except TypeError:
        raise TypeError(
            f"{type(tensor).__name__} is no tensor: it has neither DLPack nor the buffer protocol"
        ) from None
