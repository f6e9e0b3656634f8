# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs, by DLPack. The driver is a fake one, whose memory ends who touches it from the host."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy
import pytest
from dlpack_framework import VersionedFramework
from one_process_job import PATIENCE, Job

import waybill

CUDA = 2  # DLPack's type of device.
GRANULARITY = 2 << 20  # The granularity of cuMemCreate().
FAKE_CUDA_OPEN = 7  # kFakeCudaOpen: opening a handle.
FAKE_CUDA_ORDERS = 2  # kFakeCudaOrders: kernels see at once what NICs have written.
# The driver by the name that the library opens it by: it takes the one that is there.
driver = ctypes.CDLL("testing/fake_cuda/libcuda.so.1")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def check(result):
    assert result == 0, f"CUDA error {result}"


class Gpu(ExitStack):
    """Arrays on GPU 0, and streams; all of it is gone at the end of the `with`."""

    def __init__(self):
        super().__init__()
        check(driver.cuInit(0))
        context = ctypes.c_void_p()
        check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(driver.cuCtxSetCurrent(context))

    def array(self, like, allocate=None):
        address = (allocate or self.allocate)(like.nbytes)
        write(address, like)
        dtype = {"f": 2, "u": 1}[like.dtype.kind], like.itemsize * 8, 1
        return VersionedFramework(address, like.shape, device=CUDA, dtype=dtype)

    def allocate(self, size_bytes):
        address = ctypes.c_uint64()
        check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes)))
        self.callback(driver.cuMemFree_v2, address)
        return address.value

    def segment(self, size_bytes):
        """Memory across two allocations of cuMemCreate(), as torch's expandable segments are."""
        begin, reserved = ctypes.c_uint64(), ctypes.c_size_t(2 * GRANULARITY)
        check(driver.cuMemAddressReserve(ctypes.byref(begin), reserved, ctypes.c_size_t(0), 0, 0))
        self.callback(driver.cuMemAddressFree, begin, reserved)
        # Pinned, exported as a file, of device 0.
        properties, part = (ctypes.c_int * 8)(1, 1, 1, 0), ctypes.c_size_t(GRANULARITY)
        for offset in (0, GRANULARITY):
            handle, address = ctypes.c_uint64(), ctypes.c_uint64(begin.value + offset)
            check(driver.cuMemCreate(ctypes.byref(handle), part, properties, 0))
            check(driver.cuMemMap(address, part, ctypes.c_size_t(0), handle, 0))
            check(driver.cuMemRelease(handle))
            self.callback(driver.cuMemUnmap, address, part)
        # Device 0 reads and writes it.
        check(driver.cuMemSetAccess(begin, reserved, (ctypes.c_int * 3)(1, 0, 3), 1))
        return begin.value + GRANULARITY - size_bytes // 2

    def held_stream(self):
        return self.enter_context(HeldStream())


def write(address, data):
    pointer = data.ctypes.data_as(ctypes.c_void_p)
    check(driver.cuMemcpyHtoD_v2(ctypes.c_uint64(address), pointer, ctypes.c_size_t(data.nbytes)))


class Use(ctypes.Structure):
    """FakeCudaUse."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "allocations",
            "pinned",
            "streams",
            "to_host",
            "to_device",
            "handles",
            "reserved",
            "device_waits",
            "round_trips",
        )
    ]


driver.FakeCudaNow.restype = Use


def read(array, like=None):
    """The array's elements, in an array as `like`, or as WEIGHTS."""
    got = numpy.zeros_like(WEIGHTS if like is None else like)
    address, pointer = ctypes.c_uint64(array.address), got.ctypes.data_as(ctypes.c_void_p)
    check(driver.cuMemcpyDtoH_v2(pointer, address, ctypes.c_size_t(got.nbytes)))
    return got


class RecordedEvent:
    """As torch.cuda.Event: the driver's event is destroyed with the last reference to it."""

    def __init__(self, stream):
        event = ctypes.c_void_p()
        check(driver.cuEventCreate(ctypes.byref(event), 2))
        check(driver.cuEventRecord(event, stream))
        self.cuda_event = event.value

    def __del__(self):
        check(driver.cuEventDestroy_v2(ctypes.c_void_p(self.cuda_event)))


class HeldStream:
    """As torch.cuda.Stream, and what is on it does not end before release()."""

    def __init__(self):
        self.released = threading.Event()
        self._wait = HOST_FUNCTION(lambda _: self.released.wait())
        self._stream = ctypes.c_void_p()
        check(driver.cuStreamCreate(ctypes.byref(self._stream), 1))
        check(driver.cuLaunchHostFunc(self._stream, self._wait, None))

    def record_event(self):
        return RecordedEvent(self._stream)

    def release(self):
        self.released.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
        check(driver.cuStreamSynchronize(self._stream))
        check(driver.cuStreamDestroy_v2(self._stream))


WEIGHTS = numpy.arange(64 * 32, dtype=numpy.float32).reshape(64, 32)
# Long enough to be sent from where they are.
LONG_WEIGHTS = numpy.arange(256 * 64, dtype=numpy.float32).reshape(256, 64)


def test_versions_go_from_a_gpu_to_a_gpu():
    with Gpu() as gpu, Job() as job:
        source, target = gpu.array(WEIGHTS), gpu.array(numpy.zeros_like(WEIGHTS))
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", source)
        worker.add("weight", target)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        assert (read(target) == WEIGHTS).all()


@pytest.mark.parametrize(("held", "wanted"), [("float32", "float16"), ("float16", "float32")])
@pytest.mark.parametrize("turned", [False, True])
def test_a_gpu_casts_on_the_way(held, wanted, turned):
    weights = (WEIGHTS / 7).astype(held)
    shape = weights.shape[::-1] if turned else weights.shape
    strides = (1, shape[1]) if turned else (shape[1], 1)
    with Gpu() as gpu, Job() as job:
        zeros = numpy.zeros(shape, wanted)
        target = gpu.array(zeros)
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", gpu.array(weights))
        part = waybill.Part("weight", weights.shape, at=(0, 0), strides=strides)
        worker.add("target", target, parts=[part])
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        found = read(target, zeros)
        assert ((found.T if turned else found) == weights.astype(wanted)).all()


def test_the_image_of_a_gpus_tensors_lies_on_that_gpu():
    with Gpu() as gpu, Job() as job:
        source, target = gpu.array(WEIGHTS), gpu.array(numpy.zeros_like(WEIGHTS))
        here, there = WEIGHTS + 1, numpy.zeros_like(WEIGHTS)
        trainer, worker = job.trainer(images=True), job.worker(mode="shadow-copy")
        trainer.add("a", source)
        trainer.add("b", here)
        worker.add("a", target)
        worker.add("b", there)
        job.join()
        publish = trainer.publish(1, hold_commit=True, deadline=PATIENCE)
        write(source.address, numpy.zeros_like(WEIGHTS))
        here[:] = 0
        publish.arrived.wait(PATIENCE)
        publish.commit()
        publish.committed.wait(PATIENCE)
        assert (read(target) == WEIGHTS).all()
        assert (there == WEIGHTS + 1).all()


def test_a_rank_may_hold_both():
    with Gpu() as gpu, Job() as job:
        here, there = numpy.zeros_like(WEIGHTS), gpu.array(numpy.zeros_like(WEIGHTS))
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("a", gpu.array(WEIGHTS))
        trainer.add("b", WEIGHTS + 1)
        worker.add("a", here)
        worker.add("b", there)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        assert (here == WEIGHTS).all()
        assert (read(there) == WEIGHTS + 1).all()
        uuid = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00"
        assert trainer.describe()["device"] == {"ordinal": 0, "name": "Fake GPU", "uuid": uuid}


@pytest.mark.parametrize("how", ["stream", "event", "address"])
def test_a_publish_comes_after_what_is_on_the_stream(how):
    with Gpu() as gpu, Job() as job:
        source, target = gpu.array(WEIGHTS), numpy.zeros_like(WEIGHTS)
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", source)
        worker.add("weight", target)
        job.join()
        stream = gpu.held_stream()
        event = None if how == "stream" else stream.record_event()
        after = {"stream": stream, "event": event, "address": getattr(event, "cuda_event", None)}
        publish = trainer.publish_async(1, stream=after[how])
        write(source.address, WEIGHTS * 2)  # As the optimizer's last kernels would.
        assert not publish.sent.done
        stream.release()
        publish.committed.wait(PATIENCE)
        assert (target == WEIGHTS * 2).all()


def test_a_stream_of_another_gpu_is_refused():
    with Gpu() as gpu, Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", gpu.array(WEIGHTS))
        worker.add("weight", numpy.zeros_like(WEIGHTS))
        job.join()
        stream = gpu.held_stream()
        stream.device = type("Device", (), {"index": 1})()
        with pytest.raises(
            waybill.InvalidArgument, match=r"on GPU 1, and the tensors are on GPU 0 \(GPU-a0"
        ):
            trainer.publish(1, stream=stream)
        stream.device.index = 0
        stream.release()
        trainer.publish(1, stream=stream).committed.wait(PATIENCE)


def test_a_publish_that_waits_for_a_stream_can_be_cancelled():
    with Gpu() as gpu, Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("weight", gpu.array(WEIGHTS))
        worker.add("weight", numpy.zeros_like(WEIGHTS))
        job.join()
        stream = gpu.held_stream()
        publish = trainer.publish_async(1, stream=stream)
        publish.cancel()
        with pytest.raises(waybill.Cancelled, match="publish version 1"):
            publish.sent.wait(PATIENCE)
        stream.release()  # A rank that leaves frees memory, for which the driver waits for the GPU.


def test_in_place_by_a_network_that_does_not_reach_it_is_refused_and_the_remedy_named():
    with Gpu() as gpu, Job() as job:
        worker = job.worker(mode="in-place", fabric="tcp")
        worker.add("weight", gpu.array(WEIGHTS))
        with pytest.raises(waybill.FailedPrecondition, match="use shadow-copy"):
            worker.join()


def gpu_use():
    now = driver.FakeCudaNow()
    return now.allocations, now.reserved, now.handles


@pytest.mark.parametrize("kind", ["allocate", "segment"])
def test_another_process_reads_a_trainers_gpu_and_writes_its_own(kind):
    driver.FakeCudaSayOfNics(0, FAKE_CUDA_ORDERS, False)
    with Gpu() as gpu, Job() as job:
        worker = job.worker(mode="in-place", fabric="local", ask=())
        target = gpu.array(numpy.zeros_like(LONG_WEIGHTS), getattr(gpu, kind))
        worker.add("weight", target)
        command = [sys.executable, __file__, job.controller.address, kind]
        pipe, path = subprocess.PIPE, os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as trainer:
            job.join()
            own = driver.FakeCudaNow()
            for version in (1, 2):
                trainer.stdin.write(b"go on\n")
                trainer.stdin.flush()
                assert trainer.stdout.readline() == b"shown\n"
                assert (read(target, LONG_WEIGHTS) == LONG_WEIGHTS * version).all()
            # The trainer's tensors are mapped here, until it dies.
            assert driver.FakeCudaNow().allocations > own.allocations
            assert driver.FakeCudaNow().reserved - own.reserved == (1 if kind == "segment" else 0)
            trainer.kill()
            deadline = time.monotonic() + PATIENCE
            before = (own.allocations, own.reserved, 0)
            while gpu_use() != before and time.monotonic() < deadline:
                os.sched_yield()
            assert gpu_use() == before


def update_between_processes(kind, trainers, workers):
    """Publishes once. Returns the path of the lane, and how many bytes the worker's GPU got from the host's memory.

    The trainer and the worker are processes of their own, with these variables in their environments.
    """
    pipe, path = subprocess.PIPE, os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    with Job() as job:
        command = [sys.executable, __file__, job.controller.address, kind]
        with (
            subprocess.Popen(
                [*command, "worker"], stdin=pipe, stdout=pipe, env={**environment, **workers}
            ) as worker,
            subprocess.Popen(
                command, stdin=pipe, stdout=pipe, env={**environment, **trainers}
            ) as trainer,
        ):
            trainer.stdin.write(b"go on\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == b"shown\n"
            path = trainer.communicate()[0].decode().strip()
            copied = int(worker.communicate(b"go on\n")[0])
            assert (worker.wait(PATIENCE), trainer.wait(PATIENCE)) == (0, 0)
            return path, copied


@pytest.mark.parametrize("kind", ["allocate", "segment"])
def test_processes_on_one_mig_instance_open_each_others_memory(kind):
    instance = {"FAKE_CUDA_MIG": "1"}
    path, copied = update_between_processes(kind, instance, instance)
    assert (path, copied) == ("local: shared memory, also of GPUs", 0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("allocate", "open memory of another process: "), ("segment", "import an allocation of ")],
)
def test_between_mig_instances_all_goes_through_the_hosts_memory(kind, reason):
    path, copied = update_between_processes(kind, {"FAKE_CUDA_MIG": "1"}, {"FAKE_CUDA_MIG": "2"})
    assert path.startswith(f"local: shared memory; tensors are staged: {reason}"), path
    assert copied == LONG_WEIGHTS.nbytes


def test_without_a_common_pid_namespace_tensors_go_through_slots_on_the_gpu():
    path, copied = update_between_processes(
        "allocate", {"HAS_FILES": "1"}, {"OPENS_NO_HANDLES": "1"}
    )
    assert path.startswith(
        "local: shared memory, also of GPUs; tensors are staged: open memory of another process: "
    ), path
    assert copied == 0


def be_the_worker(controller, kind):
    """In a process of its own: shows one version, and says how many bytes came from the host's memory."""
    driver.FakeCudaSayOfNics(0, FAKE_CUDA_ORDERS, False)
    driver.FakeCudaRefuse(FAKE_CUDA_OPEN if "OPENS_NO_HANDLES" in os.environ else 0)
    with (
        Gpu() as gpu,
        waybill.Worker(controller, mode="in-place", fabric="local", ask=()) as worker,
    ):
        target = gpu.array(numpy.zeros_like(LONG_WEIGHTS), getattr(gpu, kind))
        before = driver.FakeCudaNow().to_device
        worker.add("weight", target)
        worker.join()
        sys.stdin.readline()
        copied = driver.FakeCudaNow().to_device - before
        assert (read(target, LONG_WEIGHTS) == LONG_WEIGHTS).all()
        print(copied, flush=True)


def be_the_trainer(controller, kind):
    """In a process of its own: a version for each line that comes."""
    driver.FakeCudaSayOfFiles(0, "HAS_FILES" in os.environ)
    with Gpu() as gpu, waybill.Trainer(controller, fabric="local") as trainer:
        source = gpu.array(LONG_WEIGHTS, getattr(gpu, kind))
        trainer.add("weight", source)
        trainer.join()
        for version, _ in enumerate(sys.stdin, start=1):
            write(source.address, LONG_WEIGHTS * version)
            trainer.publish(version).committed.wait(PATIENCE)
            print("shown", flush=True)
        print(trainer.describe()["lanes"][0]["path"], flush=True)


def test_buffers_may_be_a_gpus():
    driver.FakeCudaSayOfNics(0, FAKE_CUDA_ORDERS, False)
    with Gpu() as gpu, Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow", fabric="local", gpu=0)
        trainer.add("weight", gpu.array(WEIGHTS))
        worker.add("weight", shape=WEIGHTS.shape, dtype="float32")
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            interface = snapshot.gpu_memory("weight").__cuda_array_interface__
            assert interface["shape"] == (WEIGHTS.nbytes,)
            shown = VersionedFramework(interface["data"][0], WEIGHTS.shape, device=CUDA)
            assert (read(shown) == WEIGHTS).all()
            with pytest.raises(waybill.FailedPrecondition, match='"weight" is in the memory of a'):
                snapshot.numpy("weight")
            with pytest.raises(waybill.FailedPrecondition, match="in the memory of a GPU"):
                snapshot.region()


def test_a_worker_that_is_paused_takes_no_update():
    driver.FakeCudaSayOfNics(0, FAKE_CUDA_ORDERS, False)
    with Gpu() as gpu, Job() as job:
        trainer = job.trainer()
        worker = job.worker(mode="in-place", fabric="local", ask=())
        target = gpu.array(numpy.zeros_like(WEIGHTS))
        trainer.add("weight", WEIGHTS)
        worker.add("weight", target)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        worker.pause()
        with pytest.raises(waybill.FailedPrecondition, match="worker is paused"):
            worker.snapshot()
        with pytest.raises(waybill.FailedPrecondition, match="worker is paused"):
            trainer.publish(2).committed.wait(PATIENCE)
        worker.resume(contents_kept=True)
        with worker.snapshot() as snapshot:
            assert snapshot.version == 1
        trainer.publish(3).committed.wait(PATIENCE)
        assert (read(target) == WEIGHTS).all()


def test_memory_that_is_no_gpus():
    with waybill.Trainer() as trainer:
        trainer.add("weight", VersionedFramework(WEIGHTS.ctypes.data, (64, 32), device=CUDA))
        with pytest.raises(waybill.InvalidArgument, match='"weight": no memory of a GPU'):
            trainer.join()


if __name__ == "__main__":
    (be_the_worker if sys.argv[3:] == ["worker"] else be_the_trainer)(*sys.argv[1:3])
