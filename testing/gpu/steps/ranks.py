# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of their own, for the steps that need several."""

import queue
import subprocess
import threading
import time

import checks
import waybill


class Failure(Exception):
    """A rank has not done what it should have; says why."""


class Rank:
    """A process that takes versions and answers with lines."""

    def __init__(self, name, command):
        pipe = subprocess.PIPE
        self.name = name
        self._process = checks.start(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=1)
        self._lines, self._errors, self.lanes = queue.Queue(), [], []
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self):
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "lane":
                self.lanes.append(rest)
            else:
                self._lines.put((word, rest))
        self._lines.put((None, ""))

    def _read_errors(self):
        for line in self._process.stderr:
            self._errors.append(line)

    def tell(self, version):
        try:
            self._process.stdin.write(f"{version}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # Who waits for its answer hears of it.

    def expect(self, *words, seconds=30, beside=None):
        """Returns the first word of its next line, which must be one of `words`, and the rest.

        It waits no longer once `beside`, another rank, has ended.
        """
        seconds = checks.seconds_left(seconds)
        deadline = time.monotonic() + seconds
        while True:
            try:
                word, rest = self._lines.get(timeout=0.2)
                break
            except queue.Empty:
                if beside is not None and beside.has_ended():
                    raise Failure(f"{beside.name}: {beside.last_words()}") from None
                if time.monotonic() > deadline:
                    said = f"{self.name} has not said {words} within {seconds:.0f} s"
                    raise Failure(said) from None
        if word not in words:
            raise Failure(f"{self.name}: {f'{word} {rest}' if word else self.last_words()}")
        return word, rest

    def has_ended(self):
        return self._process.poll() is not None

    def is_silent_for(self, seconds):
        """Waits so long for its next line, which stays to be read."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return True
        self._lines.put(line)
        return False

    def last_words(self):
        status = self._process.wait(10)
        self._readers[1].join(5)
        return f"{checks.ended(status, 10)}: {''.join(self._errors[-5:]).strip()}"

    def kill(self):
        self._process.kill()
        self._process.wait()

    def leave(self):
        self._process.stdin.close()
        try:
            if self._process.wait(checks.seconds_left(20)) == 0:
                return
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        raise Failure(f"{self.name} does not leave: {self.last_words()}")


class Job:
    """A controller, a trainer and a worker, which are gone at the end of the `with`."""

    def __init__(self, fabric, megabytes, *options):
        self.arguments = fabric, megabytes, *options
        self.version = 0

    def __enter__(self):
        self.controller = waybill.Controller(listen="127.0.0.1:0")
        self.trainer = self.start("trainer")
        self.worker = self.start("worker")
        return self

    def start(self, role, *options):
        fabric, *rest = [*self.arguments, *options]
        words = [role, self.controller.address, fabric, *rest]
        name = " ".join(map(str, [role, fabric, *rest]))
        return Rank(name, [checks.PROGRAMS / "gpu_rank", *words])

    def await_joined(self):
        self.trainer.expect("joined", beside=self.worker)
        self.worker.expect("joined", beside=self.trainer)

    def begin(self):
        """Begins the next version; returns once its publish has begun."""
        self.version += 1
        self.trainer.tell(self.version)
        self.trainer.expect("begins")

    def end(self):
        """Returns the seconds from publish to shown, and how often each rank has waited for the GPU."""
        _, published = self.trainer.expect("published")
        self.worker.tell(self.version)
        _, shown = self.worker.expect("shown")
        self.worker.expect("right")
        (shown, at_worker), (published, at_trainer) = shown.split(), published.split()
        return (int(shown) - int(published)) / 1e9, int(at_trainer), int(at_worker)

    def update(self):
        self.begin()
        return self.end()

    def leave(self):
        self.trainer.leave()
        self.worker.leave()

    def __exit__(self, *_):
        for rank in (self.trainer, self.worker):
            rank.kill()
        self.controller.close()
