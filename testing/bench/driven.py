# SPDX-License-Identifier: Apache-2.0
"""Ranks and controllers of `waybill` as processes that take commands and answer in JSON."""

import json
import os
import queue
import struct
import subprocess
import sys
import threading

WAYBILL = "tools/waybill/waybill"  # Below the working directory, which is that of the runfiles.
PATIENCE = 60  # Seconds.


def write_checkpoint(folder, megabytes):
    """Writes one tensor in BF16, of a family that is cut by rows. Returns its bytes."""
    rows = megabytes * 1_000_000 // 2 // 1024 // 4 * 4
    header = {"w": {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, rows * 2048]}}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(os.urandom(2048) * rows)
    return rows * 2048


class Rank:
    """A rank that takes commands, and answers in lines of JSON."""

    def __init__(self, address, checkpoint, fabric, role, rank, world, *more):
        self._answers = queue.Queue()
        self._process = subprocess.Popen(
            [
                WAYBILL, role, "--driven", "--job", "bench", "--controller", address, "--rank", str(rank),
                "--world", str(world), "--checkpoint", checkpoint, "--fabric", fabric, *more,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"event": "ended"})

    @property
    def pid(self):
        return self._process.pid

    def tell(self, command):
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def wait_for(self, event):
        while True:
            found = self._answers.get(timeout=PATIENCE)
            if found["event"] == "ended":
                sys.exit(f"a rank has ended while {event!r} was waited for")
            if found["event"] == event:
                return found

    def leave(self):
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def kill(self):
        self._process.kill()
        self._process.wait()


def start_controller(state):
    """Returns the process and its address."""
    process = subprocess.Popen(
        [WAYBILL, "controller", "--driven", "--job", "bench", "--listen", "127.0.0.1:0", "--state", state],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return process, json.loads(process.stdout.readline())["address"]
