# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver by ctypes: each call returns the name of its result."""

import ctypes

OK = "CUDA_SUCCESS"
ALLOCATED_PART = 2 << 20
_POSIX_FILE = 1
_PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 memory) { ret; }
"""


def u64(value=0):
    return ctypes.c_uint64(value)


def size(value=0):
    return ctypes.c_size_t(value)


def ref(value):
    return ctypes.byref(value)


class Driver:
    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name, *arguments):
        """Returns "CUDA_SUCCESS", or why not."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return "this driver has no such function"
        result = function(*arguments)
        if result == 0:
            return OK
        said = ctypes.c_char_p()
        if self._library.cuGetErrorName(result, ref(said)) == 0 and said.value:
            return f"{said.value.decode()} ({result})"
        return f"error {result}"

    def must(self, name, *arguments):
        result = self(name, *arguments)
        if result != OK:
            raise RuntimeError(f"{name}: {result}")

    def context(self, ordinal=0):
        """Makes the primary context of a GPU the thread's current one. Returns it."""
        self.must("cuInit", 0)
        context = ctypes.c_void_p()
        self.must("cuDevicePrimaryCtxRetain", ref(context), ordinal)
        self.must("cuCtxSetCurrent", context)
        return context

    def allocate(self, size_bytes):
        address = u64()
        self.must("cuMemAlloc_v2", ref(address), size(size_bytes))
        return address

    def stream(self):
        stream = ctypes.c_void_p()
        self.must("cuStreamCreate", ref(stream), 1)
        return stream

    def event(self, stream=None):
        event = ctypes.c_void_p()
        self.must("cuEventCreate", ref(event), 2)
        self.must("cuEventRecord", event, stream)
        return event

    def kernel(self):
        """A kernel that does nothing, of a library, which belongs to no context."""
        library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuLibraryLoadData", ref(library), _PTX, None, None, 0, None, None, 0)
        self.must("cuLibraryGetKernel", ref(kernel), library, b"probe")
        return kernel

    def launch(self, kernel, stream):
        memory = u64()
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ref(memory), ctypes.c_void_p))
        return self("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, None)

    def create(self, parts=1, for_nics=False):
        """Memory as torch's expandable segments are: allocations of 2 MiB, mapped side by side.

        Yields each call and its result; the last item is the address, or 0.
        """
        total, part = size(parts * ALLOCATED_PART), size(ALLOCATED_PART)
        begin = u64()
        yield (
            "cuMemAddressReserve",
            self("cuMemAddressReserve", ref(begin), total, size(), u64(), u64()),
        )
        # Pinned, exported as a file, of device 0.
        properties = (ctypes.c_int * 8)(1, _POSIX_FILE, 1, 0)
        properties[6] = for_nics << 8  # gpuDirectRDMACapable
        for index in range(parts):
            handle, address = u64(), u64(begin.value + index * ALLOCATED_PART)
            yield "cuMemCreate", self("cuMemCreate", ref(handle), part, properties, u64())
            yield "cuMemMap", self("cuMemMap", address, part, size(), handle, u64())
            yield "cuMemRelease", self("cuMemRelease", handle)
        yield (
            "cuMemSetAccess",
            self("cuMemSetAccess", begin, total, (ctypes.c_int * 3)(1, 0, 3), size(1)),
        )
        yield "address", begin.value
