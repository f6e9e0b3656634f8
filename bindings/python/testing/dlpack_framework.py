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
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        managed = Managed(self._tensor, None, _delete)
        address = ctypes.addressof(managed)
        self.lent[address] = managed, self._shape
        return new(address, b"dltensor", None)
