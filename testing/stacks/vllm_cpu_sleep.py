# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM's sleep mode, which exists on GPUs only: an engine that sleeps cannot touch its weights.

vLLM's allocator takes physical memory away from the weights and keeps their addresses. Here the whole pages of each parameter
are protected instead, so a process that reads or writes the weights of an engine that sleeps is ended by a signal. vLLM's own
calls, its bookkeeping of tags and its pausing of requests are not replaced.
"""

import ctypes
import mmap

import torch

_WRITABLE, _GONE = mmap.PROT_READ | mmap.PROT_WRITE, 0


def _protect(start, size, protection):
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
    libc = ctypes.CDLL(None, use_errno=True)
    if size > 0 and libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(size), protection):
        raise OSError(ctypes.get_errno(), "mprotect")


class Allocator:
    """Has what Waybill reads of vLLM's allocator: its allocations, and which of them sleep."""

    def __init__(self):
        self.pointer_to_data = {}

    def sleep(self, model, level):
        """Takes the weights away. At level 2 their contents are lost."""
        from vllm.device_allocator import AllocationData

        for parameter in model.parameters():
            storage = parameter.untyped_storage()
            start, size = storage.data_ptr(), storage.nbytes()
            if not size or start in self.pointer_to_data:
                continue
            if level == 2:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in each dtype.
            handle = (0, size, start, 0)
            self.pointer_to_data[start] = AllocationData(handle, "weights", is_asleep=True)
            _protect(start, size, _GONE)

    def wake_up(self):
        """Gives the weights their memory back."""
        for start, allocation in self.pointer_to_data.items():
            _protect(start, allocation.handle[1], _WRITABLE)
        self.pointer_to_data.clear()


def install():
    """Lets engines on CPUs sleep."""
    from vllm import device_allocator
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

    allocator = Allocator()

    def sleep(worker, level=1):
        allocator.sleep(worker.model_runner.model, level)

    def wake_up(_worker, tags=None):
        if tags is None or "weights" in tags:
            allocator.wake_up()

    CPUWorker.sleep, CPUWorker.wake_up = sleep, wake_up
    CpuPlatform.is_sleep_mode_available = lambda _: True
    device_allocator.get_mem_allocator_instance = lambda: allocator
