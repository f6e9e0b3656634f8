# SPDX-License-Identifier: Apache-2.0
"""Flips a bit of an update between its arrival at a worker and the worker's look at its digest.

A worker digests a chunk as soon as it is told that the chunk is there. Over `local` and `verbs` others write into
its memory, so the worker is stopped in the middle of an update, and a bit is flipped among those that
arrive while it cannot look. Over `tcp` the worker itself takes the bytes out of a socket: see flipped_receives.py.
"""

import contextlib
import mmap
import os
import re
import signal
import time

import flipped_receives
from drilled_job import (
    ANSWER_SECONDS,
    NODES,
    PARTS,
    PATTERN,
    TENSOR,
    TENSOR_BYTES,
    Failure,
    role_of,
)

BUFFER = re.compile(r"/memfd:weights(?: \(shadow\))? \(deleted\)")  # What a worker receives into.
SAMPLE_BYTES = 8  # Old bytes equal new ones in so many with a chance of 1 in 2^28.
SAMPLES = 256
LOOK_SECONDS = 20 if NODES else 1
STOP_SECONDS = 0.05 if NODES else 0.01
BETWEEN_SECONDS = 0.02 if NODES else 0.0002
_32_BITS = 0xFFFFFFFF


def key_of(version):
    """Returns what tools/check/change.h calls the key of the tensor in that version."""
    bits = (1 << 64) - 1
    found = (0xCBF29CE484222325 ^ version) * 0x100000001B3 & bits
    for char in TENSOR.encode():
        found = (found ^ char) * 0x100000001B3 & bits
    return (found ^ found >> 32) & _32_BITS


def bytes_of(key, begin, size):
    """Returns bytes of the tensor, whose BF16 numbers change in their low seven bits."""
    expected = bytearray()
    for element in range(begin // 2, (begin + size) // 2):
        x = (element * 0x9E3779B1 + key) & _32_BITS
        x = (x ^ x >> 15) * 0x85EBCA77 & _32_BITS
        at = 2 * element % len(PATTERN)
        expected.append(PATTERN[at] ^ (x ^ x >> 13) & 0x7F)
        expected.append(PATTERN[at + 1])
    return bytes(expected)


def samples_of(version, begin, end):
    """Returns what the version has at some places of the tensor: {place: bytes}."""
    key = key_of(version)
    return {
        at: bytes_of(key, at, SAMPLE_BYTES)
        for at in range(0, TENSOR_BYTES, TENSOR_BYTES // SAMPLES)
        if begin <= at < end
    }


class _Buffer:
    """Memory that a worker receives into, mapped into this process."""

    def __init__(self, path, samples, begin, size):
        self._begin, self._samples = begin, samples
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def _has(self, at):
        begin = at - self._begin
        return self.memory[begin : begin + SAMPLE_BYTES] == self._samples[at]

    def missing(self):
        """Returns the places whose samples have not arrived."""
        return [at for at in self._samples if not self._has(at)]

    def flip(self, missing, numbers):
        """Flips a bit of one that was missing and has arrived. Returns false if none has."""
        arrived = [at for at in missing if self._has(at)]
        if not arrived:
            return False
        at = numbers.choice(arrived) + numbers.randrange(SAMPLE_BYTES)
        self.memory[at - self._begin] ^= 1 << numbers.randrange(8)
        return True


def _open_buffers(pid, size):
    """Returns the buffers of that size that the process has open: {inode: its descriptor's path}."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if BUFFER.fullmatch(os.readlink(path)) and os.stat(path).st_size == size:
                found[os.stat(path).st_ino] = path
        except FileNotFoundError:
            pass  # It was closed meanwhile.
    return found


def _await_stopped(pid):
    end = time.monotonic() + ANSWER_SECONDS
    states = {"R"}
    while states & {"R", "S", "D"}:
        if time.monotonic() > end:
            raise Failure(f"hang: process {pid} does not stop")
        states = set()
        for task in os.listdir(f"/proc/{pid}/task"):
            # A thread may end between the listing and the reading.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as file:
                    states.add(file.read().rpartition(")")[2].split()[0])


def publish_and_flip(job, name):
    """Begins to publish, and flips a bit of what comes to that worker.

    Returns false if the update was over before a bit could be flipped.
    """
    if job.fabric == "tcp":
        return flipped_receives.publish_and_flip(job, name)
    process = job.processes[name]
    begin, size = 0, TENSOR_BYTES
    if role_of(name) == "worker":  # Each holds some of the rows; the replica holds all of them.
        size = TENSOR_BYTES // PARTS
        begin = int(name.split()[1]) * size
    samples = samples_of(job.version + 1, begin, begin + size)
    # Over `local` a lender has the buffers of others open, too: another process digests those.
    others = [job.processes[n].pid for n in job.named("worker", "replica") if n != name]
    foreign = {inode for pid in others for inode in _open_buffers(pid, size)}
    buffers = [
        _Buffer(path, samples, begin, size)
        for inode, path in _open_buffers(process.pid, size).items()
        if inode not in foreign
    ]
    process.signal(signal.SIGSTOP)  # The update cannot be over before the first look.
    try:
        job.begin_publish()
        end = time.monotonic() + LOOK_SECONDS
        while time.monotonic() < end and not job.publish_is_over():
            process.signal(signal.SIGCONT)
            _pass(job.random.uniform(0, BETWEEN_SECONDS))
            if _flip_while_stopped(process, buffers, job.random):
                return True
        return False
    finally:
        process.signal(signal.SIGCONT)
        for buffer in buffers:
            buffer.memory.close()


def _flip_while_stopped(process, buffers, numbers):
    """Stops the worker and flips a bit. Returns false, and leaves it stopped, if there is none."""
    process.signal(signal.SIGSTOP)
    _await_stopped(process.pid)
    # The worker digests nothing of what is missing now before it goes on.
    missing = [(buffer, buffer.missing()) for buffer in buffers]
    end = time.monotonic() + STOP_SECONDS
    while time.monotonic() < end:
        if any(buffer.flip(places, numbers) for buffer, places in missing):
            return True
    return False


def _pass(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
