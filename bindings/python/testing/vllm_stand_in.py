# SPDX-License-Identifier: Apache-2.0
"""Takes the place of vLLM servers, for tests: a client whose engine is a worker with the tensors that the trainers send."""

from one_process_job import PATIENCE

from waybill.integrations.clients import Client
from waybill.integrations.receiving import worker_of_engine


class Engine(Client):
    """Controls a vLLM server, which leaves its job when it joins another one.

    made   All of them, in the order in which they were made.
    calls  What was asked of this one.
    """

    made = []

    def __init__(self, address, clear_cache=True):
        super().__init__()
        self.address, self.clear_cache, self.calls = address, clear_cache, []
        self.worker = None
        Engine.made.append(self)

    def leave(self):
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def _join(self, init_info):
        import torch

        for engine in Engine.made:
            if engine.address == self.address:
                engine.leave()
        self.worker = worker_of_engine(init_info, f"vllm-{init_info['engine']}-0", 0, 1)
        self.tensors = {}
        for name, _, shape in self.worker.job_tensors(PATIENCE):
            self.tensors[name] = torch.zeros(shape)
            self.worker.add(name, self.tensors[name])
        self.worker.join(PATIENCE)

    def _pause_engine(self):
        self.calls.append("pause")

    def _start(self):
        self.calls.append("start")

    def _update(self, update_info):
        self.worker.receive(update_info["version"], update_info["deadline"])

    def _finish(self, weight_version):
        self.calls.append("finish")

    def _resume_engine(self):
        self.calls.append("resume")
