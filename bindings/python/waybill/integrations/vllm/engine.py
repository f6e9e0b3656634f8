# SPDX-License-Identifier: Apache-2.0
"""The engine side: each worker process of vLLM is one rank of a group of Waybill workers."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import vllm  # type: ignore[import-not-found, unused-ignore]
from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found, unused-ignore]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.lora.peft_helper import PEFTHelper  # type: ignore[import-not-found, unused-ignore]
from vllm.v1.worker.gpu_worker import (  # type: ignore[import-not-found, unused-ignore]
    Worker as VLLMWorker,
)

from waybill.errors import FailedPrecondition, Unimplemented, WaybillError
from waybill.integrations.adapters import AdapterReceiver
from waybill.integrations.receiving import Receiving, describe_switch, worker_of_engine
from waybill.integrations.sender import DRAFT
from waybill.integrations.vllm import layers
from waybill.integrations.vllm.model import ReceivingModel
from waybill.worker import Worker

TESTED = "0.33."

_log = logging.getLogger("vllm.waybill")  # vLLM shows what is said below its own name.

_ASLEEP = 'the engine sleeps, and "{}" has no memory: call wake_up(tags=["weights"]), or wake_up(), before send_weights()'


@dataclass
class EngineInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The arguments with which a trainer makes each worker process join its job.

    engine    A name of the engine, unlike any other's; the groups of its workers have it in theirs.
    adapter   If the trainers publish an adapter only: the contents of its adapter_config.json.
    deadline  In seconds, for joining.
    """

    controller: str
    engine: str
    job: str = ""
    token: str | None = None
    fabric: str = "auto"
    adapter: dict[str, Any] | None = None
    deadline: float = 600.0


@dataclass
class EngineUpdate(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """The arguments with which a trainer makes each worker process receive a version.

    deadline     In seconds.
    stop         The engine's core is to stop itself, and with clear_cache, to empty its caches: see core.py.
    """

    version: int
    deadline: float = 600.0
    stop: bool = False
    clear_cache: bool = False


class WaybillEngine(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Receives versions into the model of one worker process of vLLM.

    Each version is received into a separate buffer, where receiving.py says, and verified while the model computes. A call of
    the trainer's, with the engine paused, lets the workers vote for it, and once it is committed it is copied into the
    model. A failed update therefore leaves the old weights. Layers that vLLM repacks after loading are received in the form in which they are
    loaded, and repacked layer by layer.
    """

    init_info_cls = EngineInit
    update_info_cls = EngineUpdate
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self.draft_model: Any = None  # vLLM's worker sets it before the engine joins.
        self._worker: Worker | None = None
        self._models: list[ReceivingModel] = []
        self._adapter: AdapterReceiver | None = None
        on_gpu = device.type == "cuda"
        self._receiving = Receiving(
            layers.bytes_to_receive(model),
            torch.cuda.current_device() if on_gpu else None,
            _free_bytes(vllm_config.cache_config.gpu_memory_utilization) if on_gpu else 0,
            sleeps=vllm_config.model_config.enable_sleep_mode,
            take=lambda size: torch.empty(size, dtype=torch.uint8, device=device),
            log=_log,
        )

    def init_transfer_engine(self, init_info: EngineInit) -> None:
        """Joins a job. A second call, for example after the trainers restarted, leaves the previous job first."""
        if not vllm.__version__.startswith(TESTED):
            _log.warning(
                "vLLM %s: this version of waybill was tested with vLLM %s",
                vllm.__version__,
                TESTED + "*",
            )
        parallel = self.parallel_config
        group = f"vllm-{init_info.engine}-{parallel.data_parallel_index}"
        if init_info.adapter is not None:
            self._join_adapter(init_info, group)
            return
        self._leave()
        if parallel.enable_eplb:
            raise Unimplemented(
                "join: the engine moves experts (enable_eplb), and a version would come where they were: start it "
                "without"
            )
        self._worker = self._receiving.join(lambda gpu: self._join(init_info, group, gpu))

    def _join(self, init_info: EngineInit, group: str, gpu: int | None) -> Worker:
        if gpu is not None:
            torch.cuda.empty_cache()  # The memory that was kept.
        parallel = self.parallel_config
        worker = worker_of_engine(
            vars(init_info), group, parallel.rank, parallel.world_size, gpu=gpu
        )
        try:
            self._add_models(worker, init_info.deadline, self.device if gpu is not None else None)
            worker.join(init_info.deadline)
        except BaseException:
            worker.close()
            raise
        copied = sum(model.copied_bytes for model in self._models)
        again = sum(model.again_bytes for model in self._models)
        _log.info("%s", describe_switch(copied, again, gpu, self.device))
        return worker

    def _join_adapter(self, init_info: EngineInit, group: str) -> None:
        """Joins a job whose trainers publish an adapter. The engine may be in another one for its weights."""
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None
        lora = self.vllm_config.lora_config
        if lora is None:
            raise FailedPrecondition(
                "join: the trainers publish an adapter, and the engine serves none: start it with enable_lora"
            )
        PEFTHelper.from_dict(dict(init_info.adapter or {})).validate_legal(lora)
        parallel = self.parallel_config
        if parallel.rank % parallel.local_world_size == 0:
            hosts = parallel.nnodes_within_dp
            self._adapter = AdapterReceiver(
                vars(init_info), group, parallel.node_rank_within_dp, hosts
            )

    def _add_models(self, worker: Worker, deadline: float, device: Any) -> None:
        published = {name: (shape, dtype) for name, dtype, shape in worker.job_tensors(deadline)}
        drafts = {
            name.removeprefix(DRAFT): tensor
            for name, tensor in published.items()
            if name.startswith(DRAFT)
        }
        tensors = {name: its for name, its in published.items() if not name.startswith(DRAFT)}
        target = ReceivingModel(self.model, self.vllm_config)
        target.record(tensors)
        self._models = [target]
        if self.draft_model is not None:
            draft = ReceivingModel(self.draft_model, self.vllm_config, DRAFT, self.model)
            try:
                # A draft of the kind MTP is a part of the target's checkpoint.
                draft.record(drafts or tensors, DRAFT if drafts else "")
                self._models.append(draft)
            except WaybillError as error:
                if drafts:
                    raise
                _log.warning(
                    "the draft model stays as it is, because nobody publishes it: %s", error
                )
        for model in self._models:
            model.add(worker, device)

    def start_weight_update(self) -> None:
        """Checks that the engine has joined a job."""
        if self._worker is None:
            raise FailedPrecondition(
                "start_weight_update: the engine has not joined a job: call trainer_init() on the trainers first"
            )

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Does what receive_weights() does."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: EngineUpdate) -> None:
        """Votes for a version that has arrived, and returns once the model has it or keeps the old one.

        The engine must be paused. If the update fails, send_weights() raises the reason on the trainers. It is not raised
        here as well: after an exception in one worker, vLLM's executor confuses the answers of the others.
        """
        self.start_weight_update()
        worker = self._worker
        assert worker is not None
        try:
            worker.receive(
                update_info.version,
                update_info.deadline,
                before_commit=self._before_commit,
                after_commit=self._after_commit,
            )
        except Exception as error:
            if worker._over():
                raise
            _log.error("version %d: %s", update_info.version, error)

    def _before_commit(self) -> None:
        """Waits until no kernel reads the weights. Raises if they have no memory."""
        if self.model_config.enable_sleep_mode:
            asleep = layers.find_asleep(self.model)
            if asleep is not None:
                raise FailedPrecondition(_ASLEEP.format(asleep))
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # Waybill copies on a stream of its own.

    @torch.no_grad()  # type: ignore[untyped-decorator, misc, unused-ignore]
    def _after_commit(self) -> None:
        for model in self._models:
            model.complete(self.model_config.dtype)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def finish_weight_update(self) -> None:
        """Does nothing, because update_weights() completes an update."""

    def shutdown(self) -> None:
        """Leaves its jobs. The model keeps its weights and its adapters."""
        self._leave()
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close()

    def _leave(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def _free_bytes(utilisation: float) -> int:
    """Returns how many bytes of the GPU vLLM would still use, once the model is loaded."""
    free, total = torch.cuda.mem_get_info()
    return max(0, int(free - (1 - utilisation) * total))


def _prepare_workers() -> None:
    """Makes vLLM's workers prepare an engine of ours for joining, by what only they know.

    They give it their draft model, which vLLM names to an engine only for an update of the draft alone: target and draft have to
    switch together. And they end an update that a trainer has left open because it died: no other could begin one.
    """
    init = VLLMWorker.init_weight_transfer_engine

    @functools.wraps(init)
    def prepare_and_init(worker: Any, init_info: dict[str, Any]) -> None:
        if isinstance(worker.weight_transfer_engine, WaybillEngine):
            worker.weight_transfer_engine.draft_model = worker.get_draft_model()
            if worker._weight_update_active:
                worker.finish_weight_update()
        init(worker, init_info)

    VLLMWorker.init_weight_transfer_engine = prepare_and_init


_prepare_workers()
