"""The engine side: each worker process of vLLM is one rank of a group of Waybill workers."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
import vllm  # type: ignore[import-not-found, unused-ignore]
from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found, unused-ignore]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from waybill.dtypes import NAMES, dtype_number
from waybill.errors import FailedPrecondition, Unimplemented
from waybill.integrations import fp8_blocks
from waybill.integrations.vllm import layers
from waybill.parts import Padding
from waybill.recording import Recording
from waybill.torch import record
from waybill.worker import Worker

TESTED = "0.33."
# The casts that Waybill does while it sends a tensor.
CASTS = {("F32", "BF16"), ("F32", "F16"), ("BF16", "F32"), ("F16", "F32")}
# Parameters that vLLM computes itself.
COMPUTED = ("*.k_scale", "*.v_scale", "*.q_scale", "*.prob_scale")

_log = logging.getLogger("waybill")

_ASLEEP = 'the engine sleeps, and "{}" has no memory: call wake_up(tags=["weights"]), or wake_up(), before send_weights()'


@dataclass
class EngineInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The arguments with which a trainer makes each worker process join its job.

    engine    A name of the engine, unlike any other's; the groups of its workers have it in theirs.
    deadline  In seconds, for joining.
    """

    controller: str
    engine: str
    job: str = ""
    token: str | None = None
    fabric: str = "auto"
    deadline: float = 600.0


@dataclass
class EngineUpdate(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """The arguments with which a trainer makes each worker process receive a version.

    deadline  In seconds.
    """

    version: int
    deadline: float = 600.0


class WaybillEngine(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Receives versions into the model of one worker process of vLLM.

    Each version is received into a separate buffer and verified while the model computes. A call of the trainer's, with the
    engine paused, lets the workers vote for it, and once it is committed it is copied into the model. A failed update
    therefore leaves the old weights. Layers that vLLM repacks after loading are received into host memory in the form in
    which they are loaded, and repacked layer by layer.
    """

    init_info_cls = EngineInit
    update_info_cls = EngineUpdate
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._worker: Worker | None = None
        # Memory that receives the weights of the layers that vLLM repacks: by layer, then by parameter.
        self._loaded: dict[Any, dict[str, Any]] = {}
        # Pairs of a parameter and the memory that receives it in the trainers' dtype.
        self._cast: list[tuple[Any, Any]] = []
        # Layers that share a parameter with another layer, for example a tied lm_head.
        self._tied: list[Any] = []

    def init_transfer_engine(self, init_info: EngineInit) -> None:
        """Joins a job. A second call, for example after the trainers restarted, leaves the previous job first."""
        if not vllm.__version__.startswith(TESTED):
            _log.warning(
                "vLLM %s: this version of waybill was tested with vLLM %s",
                vllm.__version__,
                TESTED + "*",
            )
        self.shutdown()
        parallel = self.parallel_config
        if parallel.enable_eplb:
            raise Unimplemented(
                "join: the engine moves experts (enable_eplb), and a version would come where they were: start it "
                "without"
            )
        worker = Worker(
            init_info.controller,
            job=init_info.job,
            token=init_info.token,
            group=f"vllm-{init_info.engine}-{parallel.data_parallel_index}",
            rank=parallel.rank,
            world=parallel.world_size,
            mode="shadow-copy",
            ask=("arrived", "commit"),
            fabric=init_info.fabric,
            catch_up=False,  # No trainer would pause the engine for it.
        )
        try:
            self._join(worker, init_info.deadline)
        except BaseException:
            worker.close()
            raise
        self._worker = worker

    def _join(self, worker: Worker, deadline: float) -> None:
        tensors = {name: (shape, dtype) for name, dtype, shape in worker.job_tensors(deadline)}
        parameters = dict(self.model.named_parameters())
        tied = [
            name
            for name, _ in self.model.named_parameters(remove_duplicate=False)
            if name not in parameters
        ]
        with layers.as_loaded(self.model) as targets:
            recording, quantised = fp8_blocks.record_for_engine(
                getattr(self.vllm_config.quant_config, "weight_block_size", None),
                lambda its, optional: self._record(its, targets, [*COMPUTED, *tied], optional),
                tensors,
                targets,
            )
        self._tied = [self.model.get_submodule(name.rpartition(".")[0]) for name in tied]
        self._add(worker, recording, tensors, quantised, targets)
        worker.join(deadline)

    def _record(
        self,
        tensors: fp8_blocks.Tensors,
        targets: dict[str, Any],
        skip: list[str],
        optional: Collection[str],
    ) -> Recording:
        parameters = dict(self.model.named_parameters())
        return record(
            self.model.load_weights,
            tensors,
            targets,
            optional=[*optional, *(name for name in targets if name not in parameters)],
            skip=skip,
            padded=layers.padded_parameters(self.model),
            cache=True,
            depends_on={
                "vllm": vllm.__version__,
                "config": self.vllm_config.compute_hash(),
                "rank": self.parallel_config.rank,
                "data_parallel": self.parallel_config.data_parallel_index,
            },
        )

    def _add(
        self,
        worker: Worker,
        recording: Recording,
        tensors: fp8_blocks.Tensors,
        quantised: Collection[str],
        targets: dict[str, Any],
    ) -> None:
        self._loaded, self._cast = {}, []
        live = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        described = recording.tensors()
        for name, recorded in recording.parts().items():
            parts = fp8_blocks.parts_on_the_way(recorded, tensors, quantised)
            path, _, leaf = name.rpartition(".")
            layer, target, now = self.model.get_submodule(path), targets[name], live.get(name)
            sources = {
                described[part.tensor].dtype for part in recorded if not isinstance(part, Padding)
            }
            dtype = _received_as(name, sources, NAMES[dtype_number(target.dtype)])
            repacked = layers.is_repacked(layer)
            if not repacked and (now is None or not _alike(now, target)):
                raise Unimplemented(
                    f'"{name}": vLLM replaced this parameter of a {type(layer).__name__} after loading, by a step that '
                    "cannot be repeated, so the layer cannot be updated"
                )
            if not repacked and dtype == target.dtype:
                worker.add(name, now, parts=parts)
                worker._watch_owner(name, self.model, name)
                continue
            received = layers.empty_like_loaded(target, dtype)
            worker.add(name, received, parts=parts)
            if repacked:
                self._loaded.setdefault(layer, {})[leaf] = received
            else:
                self._cast.append((now, received))

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
        """Casts and repacks what was received in another form. If that fails, the model is a mixture of two versions."""
        for parameter, received in self._cast:
            parameter.data.copy_(received)
        for layer, loaded in self._loaded.items():
            layers.repack(layer, loaded)
        for layer in filter(layers.is_repacked, self._tied):
            layer.quant_method.process_weights_after_loading(layer)
        layers.derive_attention(self.model, self.model_config.dtype)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def finish_weight_update(self) -> None:
        """Does nothing, because update_weights() completes an update."""

    def shutdown(self) -> None:
        """Leaves the job. The model keeps its weights."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def _received_as(name: str, sources: set[str], wanted: str) -> Any:
    """Returns the torch dtype in which a parameter is received.

    sources  The dtypes of the trainers' tensors that go into the parameter.
    wanted   The parameter's dtype. It is used if Waybill can cast the trainers' tensors to it.
    """
    if all(source == wanted or (source, wanted) in CASTS for source in sources):
        return _torch_dtype(wanted)
    if len(sources) == 1 and next(iter(sources)) in ("BF16", "F16"):
        return _torch_dtype(next(iter(sources)))
    raise Unimplemented(
        f'"{name}" has dtype {wanted}, and the trainers publish its tensors as {", ".join(sorted(sources))}: Waybill '
        "casts between F32 and BF16 or F16 only"
    )


def _torch_dtype(name: str) -> Any:
    from waybill.dtypes import FRAMEWORK_NAMES

    return getattr(torch, FRAMEWORK_NAMES[name])


def _alike(now: Any, target: Any) -> bool:
    return (now.shape, now.stride(), now.dtype) == (target.shape, target.stride(), target.dtype)
