# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: trainers publish an adapter's tensors only, and engines load it by their own path from a folder in memory.

An engine knows adapters as folders that peft has saved. Waybill writes each version to a new one in /dev/shm, where the engine
finds it again if it has evicted the adapter from the GPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any

from waybill import _waybill
from waybill.dtypes import dtype_number
from waybill.errors import InvalidArgument
from waybill.events import Commit, Ended
from waybill.integrations.receiving import worker_of_engine
from waybill.names import unwrapped
from waybill.snapshot import Snapshot
from waybill.trainer import Trainer

MEMORY = Path("/dev/shm")
_PREFIX = "waybill-adapters-"


def lend_adapter(trainer: Trainer, model: Any) -> dict[str, Any]:
    """Lends the tensors of the active adapter of a model of peft, by the names that they have in a saved adapter.

    model  A torch module of peft, whose adapter is LoRA. DTensors, as FSDP2 makes them, bring their boxes.

    Returns the contents of adapter_config.json. Raises InvalidArgument if the model has no LoRA adapter.
    """
    model = unwrapped(model)
    configs = getattr(model, "peft_config", None) or {}
    name = getattr(model, "active_adapter", None)
    if name not in configs or str(configs[name].peft_type).rpartition(".")[2] != "LORA":
        raise InvalidArgument(
            f"adapter: a {type(model).__name__} has no active LoRA adapter: give the model that peft.get_peft_model() returned"
        )
    if getattr(configs[name], "modules_to_save", None):
        raise InvalidArgument(
            f'adapter: "{name}" trains whole layers as well ({configs[name].modules_to_save}), which engines do not load: '
            "leave modules_to_save out, or send all weights"
        )
    of_adapter = re.compile(rf"(.+\.lora_\w+)\.{re.escape(str(name))}((?:\.\w+)?)")
    lent = {
        "".join(found.groups()): (key, tensor)
        for key, tensor in model.state_dict(keep_vars=True).items()
        if (found := of_adapter.fullmatch(key)) is not None
    }
    for saved, (key, tensor) in lent.items():
        trainer.add(saved, tensor)
        trainer._watch_owner(saved, model, key)
    if not lent:
        raise InvalidArgument(f'adapter: "{name}" of a {type(model).__name__} has no tensors')
    config: dict[str, Any] = json.loads(json.dumps(configs[name].to_dict(), default=_plain))
    return config


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def folder_of(engine: str, version: int) -> str:
    """Returns the folder of a version, which is the same on all hosts of an engine."""
    return str(MEMORY / f"{_PREFIX}{engine}" / str(version))


class AdapterReceiver:
    """Receives versions of an adapter, and writes each to a folder, as one rank of a group with one worker per host.

    told         As Sender gives it to engines; with "adapter", the contents of adapter_config.json.
    group        The name of the group.
    host, hosts  Which host of how many the engine runs on.

    The folders of the last two versions are kept: requests that run may still name the one before the last.
    """

    def __init__(self, told: Mapping[str, Any], group: str, host: int, hosts: int) -> None:
        self._config: dict[str, Any] = told["adapter"]
        self._folder = Path(folder_of(told["engine"], 0)).parent
        self._lock: int | None = None
        self._worker = worker_of_engine(told, group, host, hosts, mode="shadow", ask=("commit",))
        try:
            tensors = self._worker.job_tensors(told["deadline"])
            for tensor in tensors:
                self._worker.add(tensor.name, shape=tensor.shape, dtype=tensor.dtype)
            sizes = (
                prod(shape) * _waybill.dtype_size(dtype_number(dtype))
                for _, dtype, shape in tensors
            )
            self._lock = self._make_folder(3 * sum(sizes))
            self._worker.join(told["deadline"])
        except BaseException:
            self.close()
            raise
        Thread(target=self._run, name="waybill", daemon=True).start()

    def _make_folder(self, wanted_bytes: int) -> int:
        """Makes the folder, in memory if there is room, and removes what engines that died have left. Returns its lock."""
        for left in MEMORY.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_unless_used(left)
        while True:
            if shutil.disk_usage(MEMORY).free >= wanted_bytes:
                self._folder.mkdir(exist_ok=True)
            elif not self._folder.is_symlink():
                with contextlib.suppress(FileExistsError):
                    self._folder.symlink_to(tempfile.mkdtemp(prefix="waybill-"))
            lock = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self._folder.stat()):
                    return lock
            os.close(lock)  # It was removed before it was locked.

    def _run(self) -> None:
        for event in self._worker.events():
            if isinstance(event, Commit):
                try:
                    self._write(event.version)
                except Exception as error:
                    event.failed(f"adapter: write {self._folder}: {error}")
                else:
                    event.shown()
            elif isinstance(event, Ended):
                return

    def _write(self, version: int) -> None:
        new = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            new.chmod(0o755)
            (new / "adapter_config.json").write_text(json.dumps(self._config))
            with self._worker.snapshot("adapter") as snapshot:
                save_snapshot(snapshot, new / "adapter_model.safetensors")
            if not (self._folder / str(version)).exists():  # Another replica here writes the same.
                new.rename(self._folder / str(version))
        finally:
            shutil.rmtree(new, ignore_errors=True)
        versions = sorted(int(its.name) for its in self._folder.iterdir() if its.name.isdigit())
        for old in versions[:-2]:
            shutil.rmtree(self._folder / str(old), ignore_errors=True)

    def close(self) -> None:
        """Leaves the job, and removes the folders unless another replica on this host uses them."""
        self._worker.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
            with contextlib.suppress(OSError):
                _remove_unless_used(self._folder)


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Writes what a worker shows to a file of safetensors."""
    from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]

    save_file({name: snapshot.torch(name) for name in snapshot}, path)


def _remove_unless_used(folder: Path) -> None:
    """Removes what a receiver of this user has made, unless one holds its lock, which the kernel releases when it dies.

    Anybody may make a link in /dev/shm, so that what another user's link names must not be touched.
    """
    if folder.lstat().st_uid != os.geteuid():
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder.resolve())
        if folder.is_symlink():
            folder.unlink()
    finally:
        os.close(lock)
