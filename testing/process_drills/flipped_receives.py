# SPDX-License-Identifier: Apache-2.0
"""Flips a bit of what a worker receives over tcp, by a library that the worker is started with."""

import mmap
import os
import struct

LIBRARY = os.path.realpath("testing/process_drills/flipped_receive.so")
NUMBERS = struct.Struct("=III")  # As flipped_receive.c has them.
MOST_RECEIVES_AWAY = 8


def _file_of(folder, name):
    return folder / f"flip-{name.replace(' ', '-')}"


def environment(folder, name):
    """Returns what a process of that name needs, which is about to start."""
    _file_of(folder, name).write_bytes(NUMBERS.pack(0, 0, 0))
    return {"LD_PRELOAD": LIBRARY, "WAYBILL_FLIP": str(_file_of(folder, name))}


def publish_and_flip(job, name):
    """Publishes, and flips a bit of what comes to that worker.

    Returns false if too little came.
    """
    with open(_file_of(job.folder, name), "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        away = job.random.randint(1, MOST_RECEIVES_AWAY)
        NUMBERS.pack_into(memory, 0, away, job.random.randrange(1 << 24), 0)
        job.begin_publish()
        while not job.publish_is_over() and NUMBERS.unpack_from(memory)[2] == 0:
            pass
        flipped = NUMBERS.unpack_from(memory)[2] > 0
        NUMBERS.pack_into(memory, 0, 0, 0, 0)
    return flipped
