# SPDX-License-Identifier: Apache-2.0
"""Tensors of whatever framework are read where they lie: by DLPack, numpy and the buffer protocol."""

import array
import gc
import weakref

import ml_dtypes
import numpy
import pytest
from dlpack_framework import Framework
from one_process_job import PATIENCE, Job

import waybill
from waybill.dtypes import NAMES
from waybill.memory import DEVICE, HOST, memory_of


def test_a_framework_with_dlpack_alone():
    data = numpy.arange(12, dtype=numpy.float32)
    tensor = Framework(data.ctypes.data, (2, 4), byte_offset=16)
    memory = memory_of(tensor)
    assert (memory.address, memory.shape, memory.strides) == (data.ctypes.data + 16, (2, 4), (4, 1))
    assert (NAMES[memory.dtype], memory.kind, memory.read_only) == ("F32", HOST, True)
    before = Framework.deleted
    del memory
    assert Framework.deleted == before + 1


def test_what_does_not_say_that_it_may_be_written_is_no_destination():
    """DLPack without versions, as JAX gives its immutable arrays."""
    data = numpy.zeros(8, numpy.float32)
    with waybill.Worker("127.0.0.1:1", mode="in-place") as worker:
        worker.add("w", Framework(data.ctypes.data, (2, 4)))
        with pytest.raises(waybill.InvalidArgument, match="it is read-only, and to be written"):
            worker.join()


def test_memory_of_a_gpu_gets_what_the_c_abi_says_of_it():
    tensor = Framework(4096, (2, 4), device=2)
    assert memory_of(tensor).kind == DEVICE
    with waybill.Trainer() as trainer:
        trainer.add("weight", tensor)
        with pytest.raises((waybill.Unavailable, waybill.Unimplemented), match='"weight"'):
            trainer.join()


@pytest.mark.parametrize("dtype", [(5, 64, 1), (17, 4, 2), (2, 32, 4)])
def test_what_dlpack_has_and_waybill_cannot_move(dtype):
    with pytest.raises(waybill.InvalidArgument, match="DLPack's dtype"):
        memory_of(Framework(4096, (2, 4), dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (ml_dtypes.bfloat16, "BF16"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"),
        (ml_dtypes.float8_e5m2, "F8_E5M2"),
        (ml_dtypes.float8_e8m0fnu, "F8_E8M0"),
        (numpy.float64, "F64"),
        (numpy.float16, "F16"),
        (numpy.int64, "I64"),
        (numpy.bool_, "BOOL"),
    ],
)
def test_numpy_and_ml_dtypes_there_and_back(dtype, name):
    weights = numpy.arange(24).reshape(6, 4).astype(dtype)
    assert NAMES[memory_of(weights).dtype] == name
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", weights)
        worker.add("w", shape=(6, 4), dtype=dtype)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            assert snapshot["w"].dtype == dtype
            assert snapshot["w"].tobytes() == weights.tobytes()


def test_the_buffer_protocol():
    shown = array.array("f", [0] * 8)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("w", memoryview(bytearray(range(32))).cast("f", (2, 4)))
        worker.add("w", memoryview(shown).cast("B").cast("f", (2, 4)))
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    assert shown.tobytes() == bytes(range(32))


def test_a_transposed_source_and_destination():
    weights = numpy.arange(24, dtype=numpy.float32).reshape(6, 4)
    shown = numpy.zeros((6, 4), numpy.float32, order="F")
    rows = numpy.zeros((3, 4), numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker(mode="shadow-copy")
        trainer.add("w", weights)
        trainer.add("every second", weights[::2, :])
        worker.add("w", shown)
        worker.add("every second", rows)
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
    numpy.testing.assert_array_equal(shown, weights)
    numpy.testing.assert_array_equal(rows, weights[::2])


def test_memory_lives_until_its_trainer_has_left():
    class Array(numpy.ndarray):
        pass

    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        weights = numpy.ones((6, 4), numpy.float32).view(Array)
        gone = weakref.ref(weights)
        trainer.add("w", weights)
        del weights
        worker.add("w", shape=(6, 4), dtype="F32")
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot() as snapshot:
            assert snapshot["w"].min() == 1
        assert gone() is not None
        trainer.leave()
        gc.collect()
        assert gone() is None


def test_arrays_of_a_snapshot_keep_its_hold():
    weights = numpy.ones((6, 4), numpy.float32)
    with Job() as job:
        trainer, worker = job.trainer(), job.worker()
        trainer.add("w", weights)
        worker.add("w", shape=(6, 4), dtype="F32")
        job.join()
        trainer.publish(1).committed.wait(PATIENCE)
        with worker.snapshot("evaluation") as snapshot:
            array = snapshot["w"]
        with pytest.raises(waybill.FailedPrecondition, match="closed"):
            snapshot.memory("w")
        weights[:] = 2
        trainer.publish(2).committed.wait(PATIENCE)
        assert array.max() == 1
        # The third version needs the buffer that the array is of.
        third = trainer.publish_async(3, deadline=PATIENCE)
        assert not third.committed.done
        del array
        third.committed.wait(PATIENCE)
        assert worker.state.shown_version == 3
