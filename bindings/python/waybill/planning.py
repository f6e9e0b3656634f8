# SPDX-License-Identifier: Apache-2.0
"""Layouts, manifests and plans, which need no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from waybill import _waybill
from waybill.errors import InvalidArgument
from waybill.memory import memory_of
from waybill.runtime import read_json


class Manifest:
    """Describes what one rank holds: regions, tensors, shards, padding, aliases. It never changes."""

    def __init__(self, core: _waybill.Manifest) -> None:
        self._core = core

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Makes a manifest from the bytes of encode(), on any host."""
        return cls(_waybill.Manifest.decode(data))

    def encode(self) -> bytes:
        """Returns the bytes that travel to the controller. Equal manifests give equal bytes."""
        return self._core.encode()

    @property
    def region_sizes(self) -> list[int]:
        """The size of each region, in bytes."""
        return self._core.region_sizes()

    def describe(self) -> dict[str, Any]:
        """Returns regions, tensors, shards with format, box and place, padding and aliases."""
        description: dict[str, Any] = read_json(self._core.describe())
        return description


class Layout:
    """A model's tensors, and how frameworks name, fuse and shard them.

    checkpoint  A Hugging Face directory: config.json, safetensors. Or else:
    model       A made-up model: "qwen3-0.6b", "gpt2", ...; it has no data.
    layers      How many layers of a made-up model to keep; 0: all.

    >>> layout = Layout(model="qwen3-0.6b", layers=1)
    >>> layout.worker_parameters("tp=2")[1]["shape"]
    [2048, 1024]
    """

    def __init__(
        self,
        *,
        checkpoint: str | os.PathLike[str] = "",
        model: str = "",
        layers: int = 0,
    ) -> None:
        self._core = _waybill.Layout(os.fspath(checkpoint), model, layers)

    def trainer_manifest(self, sharding: str = "", rank: int = 0) -> Manifest:
        """Returns what trainer `rank` holds, in one region.

        sharding  "fsdp=2,replicas=4" or "megatron,tp=4,pp=2,ep=8".
        """
        return Manifest(self._core.trainer_manifest(sharding, rank))

    def worker_manifest(
        self, sharding: str = "", rank: int = 0, *, format: str = "", dtype: str = ""
    ) -> Manifest:
        """Returns what worker `rank` holds as vLLM or SGLang loads it, in one region.

        sharding  "tp=2,dp=4,ep=8,engine=sglang".
        format    "bf16", "fp8-block", "fp8-row", "fp8-tensor", "mxfp8"; "": what config.json says.
        dtype     The dtype of what is not quantised ("BF16"); "": as stored.
        """
        return Manifest(self._core.worker_manifest(sharding, rank, format, dtype))

    def worker_parameters(
        self, sharding: str = "", rank: int = 0, *, format: str = "", dtype: str = ""
    ) -> list[dict[str, Any]]:
        """Returns that worker's parameters in the engine's order: name, dtype, shape, region, offset."""
        said = self._core.worker_parameters(sharding, rank, format, dtype)
        parameters: list[dict[str, Any]] = read_json(said)
        return parameters

    def load(self, manifest: Manifest, buffer: Any) -> None:
        """Fills `buffer`, which is region 0 of the manifest, from the checkpoint."""
        memory = memory_of(buffer)
        if memory.read_only or not memory.dense:
            raise InvalidArgument("load: the buffer is read-only, or not contiguous")
        begin, end = memory.span()
        self._core.load(manifest._core, begin, end - begin)


class Summary(NamedTuple):
    """The totals of a plan.

    hash              The plan's hash; equal plans have equal hashes on every host.
    bytes             How many bytes arrive at workers in each update.
    writes            How many writes the routes become if nothing can be mapped.
    maxima            How many maxima of split quantisation blocks trainers trade.
    busiest_to_bound  The busiest rank's bytes over the lower bound of any assignment; 1 is perfect.
    busiest_to_mean   The busiest trainer's bytes over the mean.
    """

    hash: int
    bytes: int
    routes: int
    writes: int
    maxima: int
    maxima_messages: int
    busiest_to_bound: float
    busiest_to_mean: float


class Plan:
    """The routes from trainers to workers.

    >>> layout = Layout(model="qwen3-0.6b", layers=1)
    >>> trainers = [layout.trainer_manifest("fsdp=2", rank) for rank in range(2)]
    >>> workers = [layout.worker_manifest("tp=2", rank) for rank in range(2)]
    >>> Plan.build(trainers, workers).summary.busiest_to_bound < 1.1
    True
    """

    def __init__(self, core: _waybill.Plan) -> None:
        self._core = core

    @classmethod
    def build(
        cls,
        trainers: Sequence[Manifest],
        workers: Sequence[Manifest],
        *,
        smallest_piece_bytes: int | None = None,
    ) -> Plan:
        """Plans for these ranks, in their order. The same manifests give the same plan.

        smallest_piece_bytes  The smallest piece that trainers with the same data share out; None: 64 KiB.

        Raises InvalidArgument, and names the tensor, if no trainer can fill a byte of a worker.
        """
        return cls(
            _waybill.Plan(
                [manifest._core for manifest in trainers],
                [manifest._core for manifest in workers],
                smallest_piece_bytes or 0,
            )
        )

    @property
    def summary(self) -> Summary:
        """The plan's totals: bytes, writes, balance."""
        return Summary(**self._core.summary())

    def explain(self, format: str = "text") -> str:
        """Returns a table for people ("text"), JSON ("json"), or JSON with every route ("routes")."""
        return self._core.explain(format)
