# SPDX-License-Identifier: Apache-2.0
"""Copies the versions of a `waybill archive` to another store and back, by fsspec: object stores, HDFS, SFTP and others.

    python -m waybill.archives copy /shared/run7 s3://bucket/run7 --keep 5
    python -m waybill.archives fetch s3://bucket/run7 /local/run7

A store may have no rename and no folders. So a version is whole there once its index is there, which is copied last and removed
first; other remains are those of a copy that was interrupted, and the next copy completes them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waybill.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound

INDEX = "model.safetensors.index.json"
_VERSION = re.compile(r"version-(\d+)")


def copy_versions(folder: str | os.PathLike[str], url: str, *, keep: int = 0) -> list[int]:
    """Copies what an archive's folder has and the store lacks, oldest first, and returns the versions that were copied.

    folder  That of `waybill archive`. A version that is removed from it meanwhile is left out.
    url     As fsspec takes it, for example "s3://bucket/run7". Its package, such as s3fs, has to be installed.
    keep    How many versions the store keeps; older ones are removed. 0: all. No older ones are copied, either.

    Raises DataLoss if the store has another number of bytes than was copied; what the store raises.
    """
    if keep < 0:
        raise InvalidArgument(f"copy to {url}: keep is {keep}, and has to be 0 or more")
    store, root = _open(url)
    there = _stored(store, root)
    whole = {version for version, is_whole in there.items() if is_whole}
    wanted = sorted({*whole, *_versions_in(folder)})[-keep:]
    copied = []
    for version in wanted:
        if version in whole:
            continue
        with contextlib.suppress(FileNotFoundError):  # The archive has removed it.
            _copy(Path(folder) / f"version-{version}", store, f"{root}/version-{version}")
            copied.append(version)
    for version, is_whole in there.items():
        if version not in wanted:
            _remove(store, f"{root}/version-{version}", is_whole=is_whole)
    return copied


def versions(url: str) -> list[int]:
    """Returns the versions that are whole on a store, the oldest first."""
    return sorted(version for version, is_whole in _stored(*_open(url)).items() if is_whole)


def fetch_version(url: str, folder: str | os.PathLike[str], version: int | None = None) -> int:
    """Fetches a version into `folder`/version-N, to which `folder`/newest points then, and returns its number.

    The folder is laid out as that of `waybill archive`. A version that it has already is not fetched again.

    version  None: the newest that is whole on the store.

    Raises NotFound if the store does not have it; DataLoss if a file of it ends early.
    """
    store, root = _open(url)
    there = versions(url)
    number = max(there, default=None) if version is None else version
    if number is None or number not in there:
        what = "no version" if version is None else f"no version {version}"
        raise NotFound(f"fetch from {url}: {what} is whole there; it has {there or 'none'}")
    whole = Path(folder) / f"version-{number}"
    if not whole.exists():
        part = Path(folder) / f"version-{number}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for path in store.ls(f"{root}/version-{number}", detail=False):
            file = part / str(path).rpartition("/")[2]
            store.get_file(path, str(file))
            _check_length(file)
        part.rename(whole)
    link = Path(folder) / "newest.part"
    link.unlink(missing_ok=True)
    link.symlink_to(whole.name)
    link.rename(Path(folder) / "newest")
    return number


def _open(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for the URL, and the path in it."""
    try:
        import fsspec  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise FailedPrecondition(
            f"{url}: fsspec is not installed: pip install fsspec, and the package of the store, for example s3fs"
        ) from error
    try:
        store, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidArgument(f"{url}: {error}") from error
    store.invalidate_cache()  # Others may have written since its last listing.
    return store, str(root).rstrip("/")


def _stored(store: Any, root: str) -> dict[int, bool]:
    """Returns the versions that are in a store, and whether they are whole."""
    if not store.exists(root):
        return {}
    found = {
        int(name[1]): path
        for path in store.ls(root, detail=False)
        if (name := _VERSION.fullmatch(str(path).rstrip("/").rpartition("/")[2]))
    }
    return {version: store.exists(f"{path}/{INDEX}") for version, path in found.items()}


def _versions_in(folder: str | os.PathLike[str]) -> Iterator[int]:
    for entry in os.scandir(folder):
        if (name := _VERSION.fullmatch(entry.name)) and entry.is_dir():
            yield int(name[1])


def _copy(version: Path, store: Any, to: str) -> None:
    files = sorted(version.iterdir(), key=lambda file: (file.name == INDEX, file.name))
    if not files or files[-1].name != INDEX:
        raise FileNotFoundError(version / INDEX)
    store.makedirs(to, exist_ok=True)
    for file in files:
        store.put_file(str(file), f"{to}/{file.name}")
        size, there = file.stat().st_size, store.info(f"{to}/{file.name}")["size"]
        if size != there:
            store.rm_file(f"{to}/{file.name}")
            raise DataLoss(f"copy {file} to {to}: it has {size} bytes, and {there} are there")


def _remove(store: Any, version: str, *, is_whole: bool) -> None:
    if is_whole:
        store.rm_file(f"{version}/{INDEX}")
    store.rm(version, recursive=True)


def _check_length(file: Path) -> None:
    """Compares the length of a safetensors file with that by its header: eight bytes of length, JSON, and the data."""
    if file.suffix != ".safetensors":
        return
    size = file.stat().st_size
    with file.open("rb") as content:
        header = int.from_bytes(content.read(8), "little")
        if 8 + header <= size:
            tensors = json.loads(content.read(header))
            ends = [tensor["data_offsets"][1] for tensor in tensors.values() if "dtype" in tensor]
            header += max(ends, default=0)
    if size != 8 + header:
        raise DataLoss(f"fetch {file}: it has {size} bytes, and {8 + header} by its header")


def main(arguments: list[str] | None = None) -> None:
    """Runs the command."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m waybill.archives",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    copy = commands.add_parser("copy", help="copy versions as they appear, until it is interrupted")
    copy.add_argument("folder", help="that of `waybill archive`")
    copy.add_argument("url", help="where to, as fsspec takes it")
    copy.add_argument("--keep", type=int, default=0, help="versions there; by default all")
    copy.add_argument("--once", action="store_true", help="copy what is there, and end")
    copy.add_argument(
        "--poll", type=float, default=10.0, metavar="SECONDS", help="how often to look"
    )
    fetch = commands.add_parser("fetch", help="fetch a version, for `--checkpoint FOLDER/newest`")
    fetch.add_argument("url", help="where from")
    fetch.add_argument("folder", help="where to")
    fetch.add_argument("--version", type=int, help="by default the newest")
    options = parser.parse_args(arguments)
    if options.command == "fetch":
        version = fetch_version(options.url, options.folder, options.version)
        print(f"{options.folder}/newest is version {version}")
        return
    while True:
        try:
            for version in copy_versions(options.folder, options.url, keep=options.keep):
                print(f"version {version} is at {options.url}", flush=True)
        except OSError as error:  # The store may be back next time.
            if options.once:
                raise
            print(f"copy to {options.url}: {error}; trying again", file=sys.stderr, flush=True)
        if options.once:
            return
        time.sleep(options.poll)


if __name__ == "__main__":
    main()
