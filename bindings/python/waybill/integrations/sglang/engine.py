# SPDX-License-Identifier: Apache-2.0
"""The engine side: each scheduler process of SGLang is one rank of a group of Waybill workers."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from waybill.controller import JobTensor, job_tensors
from waybill.errors import Unimplemented, WaybillError
from waybill.integrations import fp8_blocks
from waybill.integrations.adapters import AdapterReceiver
from waybill.integrations.receiving import Receiving, describe_switch, worker_of_engine
from waybill.integrations.sglang.commands import unpack
from waybill.worker import Worker

if TYPE_CHECKING:
    from waybill.recording import Recording

TESTED = "0.5.23"
# Parameters that SGLang computes itself.
COMPUTED = ("*.k_scale", "*.v_scale")

_log = logging.getLogger("waybill")


class Place(NamedTuple):
    """Where this process is in its engine."""

    rank: int
    world: int
    replica: int  # The data-parallel replica.
    host: int = 0  # Of how many `hosts` of the replica.
    hosts: int = 1

    @property
    def is_first_on_host(self) -> bool:
        return self.rank % (self.world // self.hosts) == 0


class _Receiver:
    """Receives versions into one model."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._refusal: str | None = None  # Why every version is refused.
        self._adapter: AdapterReceiver | None = None

    def join(self, model: Any, told: dict[str, Any]) -> None:
        """Joins a job. A second call, for example after the trainers restarted, leaves the previous job first."""
        self.leave()
        try:
            receiving = Receiving(0, _gpu(), log=_log)
            self._worker = receiving.join(lambda gpu: self._join(model, told, gpu))
        except Exception as error:
            _log.error("the engine cannot join the job: %s", error)
            self._join_to_refuse(told, str(error))

    def _join(self, model: Any, told: dict[str, Any], gpu: int | None) -> Worker:
        worker = _worker(told, gpu=gpu)
        try:
            copied = _add(worker, model, worker.job_tensors(told["deadline"]))
            worker.join(told["deadline"])
        except BaseException:
            worker.close()
            raise
        _log.info("%s", describe_switch(copied, 0, gpu, next(model.parameters()).device))
        return worker

    def join_for_adapter(self, told: dict[str, Any]) -> None:
        """Joins a job whose trainers publish an adapter. The engine may be in another one for its weights."""
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None
        place = _place()
        if place.is_first_on_host:
            group = _group(told, place)
            self._adapter = AdapterReceiver(told, group, place.host, place.hosts)

    def _join_to_refuse(self, told: dict[str, Any], why: str) -> None:
        """Joins with one small tensor, and refuses every version.

        An exception in a custom weight loader ends SGLang's process, and its servers return no text of ours. So the reason
        reaches the trainers by Waybill: their first send_weights() raises it.
        """
        tensors = job_tensors(told["controller"], token=told["token"], deadline=told["deadline"])
        smallest = min(tensors, key=lambda tensor: prod(tensor.shape))
        worker = _worker(told, mode="shadow")
        try:
            worker.add(smallest.name, shape=smallest.shape, dtype=smallest.dtype)
            worker.join(told["deadline"])
        except BaseException:
            worker.close()
            raise
        self._worker, self._refusal = worker, why

    def update(self, model: Any, told: dict[str, Any]) -> None:
        """Votes for a version that has arrived, and returns once the model has it or keeps the old one.

        The engine must be paused. The trainers' send_weights() raises why it failed.
        """
        if self._worker is None:
            _log.error("version %d: the engine has not joined a job", told["version"])
            return
        try:
            self._worker.receive(
                told["version"],
                told["deadline"],
                before_commit=self._before_commit,
                after_commit=lambda: _finish_loading(model),
            )
        except Exception as error:  # SGLang ends its process on it.
            _log.error("version %d: %s", told["version"], error)

    def _before_commit(self) -> None:
        if self._refusal is not None:
            raise Unimplemented(self._refusal)
        _wait_for_gpu()

    def leave(self) -> None:
        """Leaves the job. The model keeps its weights."""
        worker, self._worker, self._refusal = self._worker, None, None
        if worker is not None:
            worker.close()


_receivers: weakref.WeakKeyDictionary[Any, _Receiver] = weakref.WeakKeyDictionary()


def receive(model: Any, named_tensors: Any) -> None:
    """Does what a trainer commands. SGLang calls it as its custom weight loader, in every scheduler process.

    It does not raise for what goes wrong in a job, because SGLang ends its process on an exception here. Trainers hear of it
    from Waybill, and the log names it.
    """
    receiver = _receivers.setdefault(model, _Receiver())
    command = unpack(named_tensors)
    try:
        if command["do"] == "join" and command.get("adapter") is not None:
            receiver.join_for_adapter(command)
        elif command["do"] == "join":
            receiver.join(model, command)
        else:
            receiver.update(model, command)
    except WaybillError as error:
        _log.error("%s: %s", command["do"], error)


def _worker(told: dict[str, Any], **options: Any) -> Worker:
    place = _place()
    return worker_of_engine(told, _group(told, place), place.rank, place.world, **options)


def _group(told: dict[str, Any], place: Place) -> str:
    return f"sglang-{told['engine']}-{place.replica}"


def _place() -> Place:
    from sglang.srt.runtime_context import (  # type: ignore[import-not-found, unused-ignore]
        get_parallel,
        get_server_args,
    )

    parallel, options = get_parallel(), get_server_args()
    rank = parallel.pp_rank * parallel.tp_size + parallel.tp_rank
    world = parallel.tp_size * parallel.pp_size
    return Place(rank, world, _replica(parallel), options.node_rank, options.nnodes)


def _replica(parallel: Any) -> int:
    try:
        return int(parallel.dp_rank or 0)
    except (AttributeError, RuntimeError, ValueError):  # It was never published.
        return 0


def _add(worker: Worker, model: Any, published: list[JobTensor]) -> int:
    """Adds what the model's own loader fills, as it was recorded, and returns how many bytes that is."""
    from waybill.torch.module import named_tensors

    tensors = {name: (shape, dtype) for name, dtype, shape in published}
    recording, quantised = _record(model, tensors)
    parameters = named_tensors(model)
    recording.check_targets(parameters)
    for name, parts in recording.parts().items():
        on_the_way = fp8_blocks.parts_on_the_way(parts, tensors, quantised)
        worker.add(name, parameters[name], parts=on_the_way)
        worker._watch_owner(name, model, name)
    return sum(int(parameters[name].nbytes) for name in recording.parts())


def _record(model: Any, tensors: fp8_blocks.Tensors) -> tuple[Recording, Collection[str]]:
    """Records the model's own loader on a twin without memory, and returns the tensors that trainers have to quantise."""
    from waybill.torch import record
    from waybill.torch.module import named_tensors

    twin = _twin_of(model)
    parameters = dict(twin.named_parameters())
    # Buffers that are computed when a model is made, such as rotary caches, are on the CPU even in a twin.
    targets = {
        name: tensor
        for name, tensor in named_tensors(twin).items()
        if name in parameters or tensor.is_meta
    }
    buffers = [name for name in targets if name not in parameters]
    return fp8_blocks.record_for_engine(
        getattr(getattr(twin, "quant_config", None), "weight_block_size", None),
        lambda its, optional: record(
            twin.load_weights,
            its,
            targets,
            optional=[*optional, *buffers],
            skip=COMPUTED,
            cache=True,
            depends_on=_circumstances(model),
        ),
        tensors,
        targets,
    )


def _twin_of(model: Any) -> Any:
    """Returns the same model on `meta`, made as SGLang makes it. A live model refers to much that cannot be copied."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from sglang.srt.configs.load_config import (  # type: ignore[import-not-found, unused-ignore]
        LoadConfig,
    )
    from sglang.srt.configs.model_config import (  # type: ignore[import-not-found, unused-ignore]
        ModelConfig,
    )
    from sglang.srt.model_loader import loader  # type: ignore[import-not-found, unused-ignore]
    from sglang.srt.runtime_context import (  # type: ignore[import-not-found, unused-ignore]
        get_server_args,
    )

    config = ModelConfig.from_server_args(get_server_args())
    load_config = LoadConfig()
    quantisation = loader._get_quantization_config(config, load_config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(config.dtype)
    try:
        with torch.device("meta"):
            twin = loader._initialize_model(config, load_config, quantisation)
    finally:
        torch.set_default_dtype(before)
    if type(twin) is not type(model):
        raise Unimplemented(
            f"the engine serves a {type(model).__name__}, and its configuration describes a {type(twin).__name__}: "
            "draft models and wrapped models cannot be updated"
        )
    return twin


def _circumstances(model: Any) -> dict[str, Any]:
    """Returns what a recording depends on besides the names, shapes and dtypes of tensors."""
    import sglang  # type: ignore[import-not-found, unused-ignore]

    if sglang.__version__ != TESTED:
        _log.warning(
            "SGLang %s: this version of waybill was tested with SGLang %s",
            sglang.__version__,
            TESTED,
        )
    config: Any = getattr(model, "config", None)
    return {
        "sglang": sglang.__version__,
        "config": config.to_json_string() if hasattr(config, "to_json_string") else str(config),
        "place": list(_place()),
    }


def _gpu() -> int | None:
    import torch  # type: ignore[import-not-found, unused-ignore]

    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _wait_for_gpu() -> None:
    """Waits until no kernel reads the weights. SGLang's in_place pause only keeps it from launching more of them."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    if torch.cuda.is_available():
        torch.cuda.synchronize()  # Waybill copies on a stream of its own.


def _finish_loading(model: Any) -> None:
    """Runs SGLang's step after loading, for example for MLA, which it does not run after a custom loader."""
    if hasattr(model, "post_load_weights"):
        model.post_load_weights()
