# SPDX-License-Identifier: Apache-2.0
"""Connects TRL's trainers to vLLM servers: every rank sends its shards, and no rank gathers the weights.

On every rank, before the trainer is made:

    import waybill.integrations.trl

    waybill.integrations.trl.install("controller:7070")
    trainer = GRPOTrainer(..., args=GRPOConfig(use_vllm=True, vllm_mode="server"))

This is for all trainers that send weights by TRL's VLLMGeneration (GRPO, RLOO and others). AsyncGRPOTrainer takes an object instead,
which every rank makes:

    trainer = AsyncGRPOTrainer(..., weight_transfer=WeightTransfer("controller:7070", "http://engine:8000"))

Start the server with --weight-transfer-config '{"backend": "waybill"}' in place of TRL's "nccl".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from waybill.errors import Unimplemented
from waybill.integrations.sender import Sender, Switch, told_to_engines
from waybill.names import engine_name
from waybill.trainer import Trainer

# What accelerate puts before the names of layers that it computes again in the backward pass.
_CHECKPOINTED = "_checkpoint_wrapped_module."


def install(
    controller: str,
    *,
    job: str = "",
    token: str | None = None,
    fabric: str = "auto",
    deadline: float = 600.0,
) -> None:
    """Makes TRL's trainers send their weights to a vLLM server (vllm_mode="server") through Waybill instead of NCCL.

    controller, job, token, fabric
              As in waybill.Trainer. Rank 0 passes them on to the server.
    deadline  In seconds, for joining and for each update.
    """
    from trl.generation.vllm_client import (  # type: ignore[import-not-found, unused-ignore]
        VLLMClient,
    )
    from trl.generation.vllm_generation import (  # type: ignore[import-not-found, unused-ignore]
        VLLMGeneration,
    )

    told = told_to_engines(controller, deadline, job=job, token=token, fabric=fabric)
    sync_colocated = VLLMGeneration.sync_weights

    def sync_weights(self: Any) -> None:
        if self.mode != "server":
            sync_colocated(self)
            return
        shards = getattr(self, "_waybill", None)
        if shards is None:
            main = self.accelerator.is_main_process
            shards = self._waybill = _Shards(told, self.vllm_client.base_url if main else "")
        merged = _is_peft(self.model)
        if merged:
            self.model.merge_adapter()
        try:
            shards.send(self.model, self.accelerator)
        finally:
            if merged:
                self.model.unmerge_adapter()

    VLLMGeneration.sync_weights = sync_weights
    VLLMClient.init_communicator = lambda self, device=0: None  # NCCL's group.


class WeightTransfer:
    """Sends the weights of an AsyncGRPOTrainer. Every rank makes one, before its trainer, and passes it as `weight_transfer`.

    The server goes on generating while the new weights arrive, and stands still only to switch to them.

    controller, job, token, fabric, deadline
            As for install().
    server  The server's address.
    """

    def __init__(
        self,
        controller: str,
        server: str,
        *,
        job: str = "",
        token: str | None = None,
        fabric: str = "auto",
        deadline: float = 600.0,
    ) -> None:
        from trl.experimental.async_grpo.async_grpo_trainer import (  # type: ignore[import-not-found, unused-ignore]
            AsyncGRPOTrainer,
        )

        shards = self._shards = _Shards(
            told_to_engines(controller, deadline, job=job, token=token, fabric=fabric), server
        )

        # TRL keeps this object on rank 0 only, but iterates over the gathered weights on every rank.
        def send_shards(trainer: Any) -> Iterator[Any]:
            shards.send(trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator)
            yield from ()

        AsyncGRPOTrainer._streaming_iter = send_shards

    @property
    def last_switch(self) -> Switch | None:
        """How the server switched to the last version; None before it, and on the ranks other than 0."""
        return self._shards.last_switch

    def init_weight_transfer(self) -> None:
        """Does nothing: the ranks join when they send for the first time."""

    def pause(self) -> None:
        """Does nothing: the server is paused once it has the new weights."""

    def send_weights(self, iterator: Iterator[Any]) -> None:
        """Sends this rank's shards, as the iterator does on the other ranks."""
        for _ in iterator:
            pass

    def resume(self) -> None:
        """Does nothing: the server has gone on."""

    def destroy(self) -> None:
        """Leaves the job. The server keeps its weights."""
        self._shards.close()


class _Shards:
    """What a rank lends. It joins the job with the first update."""

    def __init__(self, told: dict[str, Any], server: str) -> None:
        self._told = told
        self._server = server
        self._sender: Sender | None = None

    @property
    def last_switch(self) -> Switch | None:
        return self._sender.last_switch if self._sender else None

    def send(self, model: Any, accelerator: Any) -> None:
        if self._sender is None:
            self._sender = self._join(model, accelerator)
        self._sender.send()

    def _join(self, model: Any, accelerator: Any) -> Sender:
        from trl.distributed import (  # type: ignore[import-not-found, unused-ignore]
            DistributedBackend,
        )

        backend = DistributedBackend(accelerator)
        if backend.is_zero3 or backend.fsdp_version == 1:
            raise Unimplemented(
                "sync weights: FSDP1 and DeepSpeed ZeRO-3 hold no shards of tensors, but of flat memory: train with FSDP2 "
                "(fsdp_version: 2), DDP, or ZeRO-1 or ZeRO-2"
            )
        told, clients = self._told, None
        trainer = Trainer(
            told["controller"],
            job=told["job"],
            token=told["token"],
            rank=accelerator.process_index,
            world=accelerator.num_processes,
            fabric=told["fabric"],
        )
        try:
            if accelerator.is_main_process:
                from waybill.integrations.vllm.clients import HTTPClient

                clients = [HTTPClient(self._server)]
            skip = [f"*{model.prefix}*", "*original_module*"] if _is_peft(model) else []
            trainer.add_exported(model, _export, skip=skip)
        except BaseException:
            trainer.close()
            raise
        return Sender(trainer, clients, told, told["deadline"])

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


def _export(model: Any) -> Any:
    """Makes the tensors of a checkpoint, as transformers' save_pretrained() does."""
    from transformers.core_model_loading import (  # type: ignore[import-not-found, unused-ignore]
        revert_weight_conversion,
    )

    tensors = {
        engine_name(name).replace(_CHECKPOINTED, ""): tensor
        for name, tensor in model.state_dict().items()
    }
    return revert_weight_conversion(model.get_base_model() if _is_peft(model) else model, tensors)


def _is_peft(model: Any) -> bool:
    from accelerate.utils import (  # type: ignore[import-not-found, unused-ignore]
        is_peft_model,
    )

    return bool(is_peft_model(model))
