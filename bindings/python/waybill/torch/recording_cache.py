# SPDX-License-Identifier: Apache-2.0
"""Keeps recordings in a folder, by everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.errors import InvalidArgument
from waybill.recording import FORMAT, Recording, Tensor

# Changes whenever the recorder follows a loader in another way, so that recordings of older releases are made anew.
RECORDER_VERSION = 1

_log = logging.getLogger("waybill")


def default_folder() -> Path:
    """Returns waybill/recordings in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "waybill/recordings")


def _rank_and_world() -> list[int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return [distributed.get_rank(), distributed.get_world_size()]
    return [0, 1]


class RecordingCache:
    """A folder with a file for each recording. Files are replaced whole, so any number of processes may share it.

    folder  None: default_folder().
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = default_folder() if folder is None else Path(folder)

    def key(
        self,
        loader: str,
        tensors: Mapping[str, Tensor],
        targets: Mapping[str, Any],
        options: Sequence[Sequence[str]],
        depends_on: Mapping[str, object],
    ) -> str:
        """Returns the name of a file: a digest of everything that a recording depends on."""
        storages: dict[int, int] = {}
        digest = hashlib.sha256()
        for part in (
            ["format", FORMAT, "recorder", RECORDER_VERSION, "torch", torch.__version__],
            ["loader", loader],
            ["rank", *_rank_and_world()],
            ["options", *options],
            ["depends_on", {str(name): str(value) for name, value in depends_on.items()}],
            ["tensors", *([name, *tensor] for name, tensor in tensors.items())],
            [
                "targets",
                *(
                    [
                        name,
                        list(target.shape),
                        list(target.stride()),
                        str(target.dtype),
                        # Which targets share a storage, and where they lie in it.
                        storages.setdefault(target.untyped_storage()._cdata, len(storages)),
                        target.storage_offset(),
                    ]
                    for name, target in targets.items()
                ),
            ],
        ):
            for word in part:
                digest.update(json.dumps(word, sort_keys=True).encode() + b"\n")
        return digest.hexdigest()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def read(self, key: str) -> Recording | None:
        """Returns the recording with this key, or None if there is none or its file is damaged."""
        try:
            digest, _, text = self._path(key).read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(text).hexdigest().encode() != digest:
            _log.warning("%s is damaged: recording anew", self._path(key))
            return None
        try:
            return Recording.from_json(text)
        except InvalidArgument as error:
            _log.warning("%s: %s: recording anew", self._path(key), error)
            return None

    def write(self, key: str, recording: Recording) -> None:
        """Keeps a recording. A folder that cannot be written to is logged, and is no error."""
        text = recording.to_json().encode()
        digest = hashlib.sha256(text).hexdigest().encode()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(digest + b"\n" + text)
            os.replace(file.name, self._path(key))
        except OSError as error:
            _log.warning("the recording cannot be kept for the next start: %s", error)
