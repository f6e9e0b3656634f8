# SPDX-License-Identifier: Apache-2.0
"""A framework whose tensors have DLPack and nothing else, for tests."""

import ctypes


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


@DELETER
def _delete(address):
    Framework.lent.pop(address)
    Framework.deleted += 1


class Framework:
    """A tensor of a framework that only has DLPack, in the form from before version 1."""

    lent = {}  # By address, until its deleter is called: that may be after the tensor is gone.
    deleted = 0

    def __init__(self, data, shape, *, device=1, dtype=(2, 32, 1), byte_offset=0):
        self.address = data
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._tensor = DLTensor(data, device, 0, len(shape), *dtype, self._shape, None, byte_offset)

    def __dlpack__(self):
        return self._lend(Managed(self._tensor, None, _delete), b"dltensor")

    def _lend(self, managed, name):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        address = ctypes.addressof(managed)
        self.lent[address] = managed, self._shape
        return new(address, name, None)


class VersionedFramework(Framework):
    """The same in version 1, which can say that memory may be written: this one's may."""

    def __dlpack__(self, *, max_version):
        assert max_version >= (1, 0)
        managed = ManagedVersioned(1, 0, None, _delete, 0, self._tensor)
        return self._lend(managed, b"dltensor_versioned")
