# SPDX-License-Identifier: Apache-2.0
"""A whole job in one process, for tests: the ranks join on threads, as their programs would."""

import threading
from contextlib import ExitStack

import waybill

PATIENCE = 60  # Seconds: a test that waits so long has failed.


class Job(ExitStack):
    """A controller, and ranks that leave at the end of the `with`."""

    def __init__(self, **controller):
        super().__init__()
        self.controller = self.enter_context(waybill.Controller(listen="127.0.0.1:0", **controller))
        self.ranks = []

    def trainer(self, **options):
        return self._rank(waybill.Trainer(self.controller.address, **options))

    def worker(self, **options):
        return self._rank(waybill.Worker(self.controller.address, **options))

    def _rank(self, rank):
        self.ranks.append(self.enter_context(rank))
        return rank

    def join(self):
        """All ranks at the same time; raises what the first of them raises."""
        errors = together([rank.join for rank in self.ranks])
        if errors:
            raise errors[0]


def together(calls):
    """Runs each on a thread of its own; what they raised, in their order."""
    raised = {}

    def run(index, call):
        try:
            call()
        except Exception as error:
            raised[index] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a rank hangs"
    return [raised[index] for index in sorted(raised)]
