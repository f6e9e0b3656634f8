# SPDX-License-Identifier: Apache-2.0
"""Runs a loader over tensors on `meta`, and makes a recording of what it copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]

from waybill.dtypes import FRAMEWORK_NAMES, NAMES, dtype_number
from waybill.errors import FailedPrecondition, InvalidArgument, Unimplemented
from waybill.patterns import compress, join, split
from waybill.recording import Fill, Recording, Route, Target, Tensor
from waybill.strided import View
from waybill.torch.lineage import SOURCE, Buffer, Findings, follow
from waybill.torch.recording_cache import RecordingCache
from waybill.torch.tracer import ItemWatch, Tracer, ValueRead, uncollected

Load = Callable[[Iterator[tuple[str, Any]]], object]

# How many lines an error has for groups of tensors.
_MOST_LINES = 100

_REMEDY = (
    "Waybill moves copies of elements, cast at most once. Let trainers publish the computed tensors under names of "
    "their own, or name these targets in skip= and load them yourself"
)


class Options(NamedTuple):
    """Names and patterns of names; record() says what each is for."""

    optional: tuple[str, ...]
    skip: tuple[str, ...]
    unused: tuple[str, ...]
    padded: tuple[str, ...]


def _torch_dtype(dtype: object) -> Any:
    return getattr(torch, FRAMEWORK_NAMES[NAMES[dtype_number(dtype)]])


def describe_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the descriptions of tensors that are given as (shape, dtype), or as anything with these attributes."""
    described = {}
    for name, given in tensors.items():
        shape, dtype = given if isinstance(given, tuple) else (given.shape, given.dtype)
        described[name] = Tensor(tuple(map(int, shape)), NAMES[dtype_number(dtype)])
    return described


def describe_targets(targets: Mapping[str, Any]) -> dict[str, Target]:
    """Returns the descriptions of parameters."""
    return {
        name: Target(tuple(t.shape), tuple(t.stride()), NAMES[dtype_number(t.dtype)])
        for name, t in targets.items()
    }


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a name is one of the names, or matches one of the patterns of shells."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def record(
    load: Load,
    tensors: Mapping[str, Any],
    targets: Mapping[str, Any],
    *,
    optional: Iterable[str] = (),
    skip: Iterable[str] = (),
    unused: Iterable[str] = (),
    padded: Iterable[str] = (),
    cache: str | os.PathLike[str] | bool = False,
    depends_on: Mapping[str, object] | None = None,
) -> Recording:
    """Records which elements of which tensors a loader copies to which places of its targets.

    `load` runs once, on this thread, over tensors that have no memory. Copies that it makes on other threads are not
    seen. Nothing is allocated, and no element is moved. The same loader gives an equal recording on every host.

    load        Called with an iterator over (name, tensor), like the load_weights() of an engine's model. It may depend
                on names, shapes and dtypes, and not on values.
    tensors     What it is given: for each name (shape, dtype), shapes in elements, or anything that has .shape and
                .dtype. The order is kept.
    targets     What it fills: parameters on `meta`, by name, as meta_twin() makes them. They may be views of one flat
                storage. Of tied parameters the first name counts.
    optional    Names of targets, or patterns as "*.k_scale", that are left out if the loader fills nothing of them.
    skip        Names of targets, or patterns, that are left out: the caller fills them.
    unused      Names of tensors, or patterns, that the loader may copy to where no target is.
    padded      Names of targets, or patterns, that the engine has made larger than what the loader fills. The rest of each is
                padding, which is 0.
    cache       A folder of recordings that were made before; True: waybill/recordings in $XDG_CACHE_HOME or ~/.cache.
                A damaged file is made anew. Any number of processes may share the folder.
    depends_on  What else the loader depends on; needed with a cache: {"vllm": vllm.__version__, "tp_rank": 3}.
                Names, shapes, dtypes, the loader's qualified name, the version of torch and the rank of
                torch.distributed are always compared.

    Raises Unimplemented with all targets whose elements are no copies, each with the operation; FailedPrecondition if
    the loader itself fails, or fills a target partly or not at all, or copies a tensor to where no target is; and
    InvalidArgument if targets overlap or are not on `meta`.
    """
    options = Options(tuple(optional), tuple(skip), tuple(unused), tuple(padded))
    described = describe_tensors(tensors)
    if not cache:
        return _record(load, described, targets, options)
    if depends_on is None:
        raise InvalidArgument(
            "a cache needs depends_on: what the loader depends on beside names and shapes, such as the engine's "
            'version and this rank\'s place: depends_on={"vllm": vllm.__version__, "tp_rank": 3}'
        )
    recordings = RecordingCache(None if cache is True else cache)
    key = recordings.key(loader_name(load), described, targets, options, depends_on)
    found = recordings.read(key)
    if found is None:
        found = _record(load, described, targets, options)
        recordings.write(key, found)
    return found


def _items(tracer: Tracer, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    dtypes = {dtype: _torch_dtype(dtype) for _, dtype in set(tensors.values())}
    for name, (shape, dtype) in tensors.items():
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            tensor = torch.empty(shape, dtype=dtypes[dtype], device="meta")
            tracer.add_source(name, tensor)
        yield name, tensor


def _run(load: Load, tracer: Tracer, tensors: Mapping[str, Tensor]) -> None:
    try:
        with torch.no_grad(), tracer, ItemWatch(tracer):
            load(_items(tracer, tensors))
    except ValueRead:
        return  # It is among the refusals.
    except Exception as error:
        after = f' at or after "{tracer.last_source}"' if tracer.last_source else ""
        raise FailedPrecondition(
            f"the loader failed while it was recorded on meta tensors{after}: {type(error).__name__}: {error}"
        ) from error


@uncollected()
def _record(
    load: Load,
    tensors: Mapping[str, Tensor],
    targets: Mapping[str, Any],
    options: Options,
) -> Recording:
    tracer = Tracer(targets)
    storages = {name: target.untyped_storage()._cdata for name, target in targets.items()}
    padded = {name: t for name, t in tracer.targets.items() if matches(name, options.padded)}
    for name in padded:
        tracer.fill(targets[name], 0.0)
    _run(load, tracer, tensors)
    for target in padded.values():
        if len(target.writes) == 1:
            target.writes.clear()  # The loader has written nothing: the target is not filled.
    collected = _Collected(tracer, options.skip)
    for name, target in targets.items():
        if target.untyped_storage()._cdata != storages[name] and not matches(name, options.skip):
            collected.refused.append((name, "the loader gives the parameter other memory"))
    collected.check(load)
    filled = {route.target for route in collected.routes} | {f.target for f in collected.fills}
    recording = Recording(
        tensors,
        {
            name: target
            for name, target in describe_targets(targets).items()
            if name in tracer.targets
            and not matches(name, options.skip)
            and (name in filled or not matches(name, options.optional))
        },
        collected.routes,
        collected.fills,
    )
    _check_coverage(recording, tracer.copied - collected.used, options.unused)
    return recording


class _Collected:
    """What was found out about all targets."""

    def __init__(self, tracer: Tracer, skip: tuple[str, ...]) -> None:
        self.routes: list[Route] = []
        self.fills: list[Fill] = []
        self.refused: list[tuple[str, str]] = []
        self.used: set[str] = set()
        self._read = tracer.refusals
        for name, target in tracer.targets.items():
            self._follow(name, target, matches(name, skip))
            target.writes.clear()

    def _follow(self, name: str, target: Buffer, skipped: bool) -> None:
        def route(to: View, source: Buffer, of: View) -> None:
            self.used.add(source.name)
            if not skipped:
                self.routes.append(Route(name, to, source.name, of))

        def fill(to: View, value: float) -> None:
            if not skipped:
                self.fills.append(Fill(name, to, value))

        def refuse(reason: str) -> None:
            if not skipped and (not self.refused or self.refused[-1] != (name, reason)):
                self.refused.append((name, reason))

        follow(target, Findings(route, fill, refuse))
        # What another tensor overwrites has been copied to a target, too: an embedding that a checkpoint has twice.
        for write in target.writes:
            if isinstance(write.origin, Buffer) and write.origin.kind == SOURCE:
                self.used.add(write.origin.name)

    def check(self, load: Load) -> None:
        """Raises Unimplemented with everything that was refused."""
        lines = [f"  {reason}" for reason in dict.fromkeys(self._read)]
        lines += grouped(self.refused)
        if lines:
            raise Unimplemented(
                f"{loader_name(load)} does more than copy:\n{joined(lines)}\n{_REMEDY}"
            )


def loader_name(load: Load) -> str:
    """Returns the module and the qualified name of a loader."""
    what = load if hasattr(load, "__qualname__") else type(load)
    return f"{what.__module__}.{what.__qualname__}"


def grouped(found: Iterable[tuple[str, str]]) -> list[str]:
    """Returns a line for each pattern of names and reasons."""
    groups: dict[Any, list[tuple[str, str]]] = {}
    for name, reason in found:
        groups.setdefault((split(name)[0], split(reason)[0]), []).append((name, reason))
    lines = []
    for group in groups.values():
        name, reason = group[0]
        more = f" (and {len(group) - 1} more such)" if len(group) > 1 else ""
        lines.append(f'  "{name}": {reason}{more}')
    return lines


def joined(lines: list[str]) -> str:
    """Returns lines as one text, without those that are too many."""
    more = len(lines) - _MOST_LINES
    return "\n".join(lines[:_MOST_LINES] + ([f"  and {more} more"] if more > 0 else []))


def named_ranges(names: Iterable[str]) -> list[str]:
    """Returns a line for each pattern of names: '"layers.0.w" (and 3 more such)'."""
    groups: dict[Any, list[Any]] = {}
    for name in names:
        pieces, numbers = split(name)
        groups.setdefault(pieces, []).append(numbers)
    lines = []
    for pieces, rows in groups.items():
        first = join(pieces, compress(rows)[0].first)
        lines.append(f'"{first}"' + (f" (and {len(rows) - 1} more such)" if len(rows) > 1 else ""))
    return lines


def _check_coverage(recording: Recording, lost: set[str], unused: tuple[str, ...]) -> None:
    problems = []
    unfilled = recording.unfilled()
    if unfilled:
        targets = recording.targets()
        for line in grouped(
            (name, f"{count} of {_count(targets[name])} elements are not filled")
            for name, count in unfilled.items()
        ):
            problems.append(line)
        problems.append(
            "Give record() all tensors of the checkpoint, or name targets in skip= that the caller fills, or in padded= "
            "if the rest of them is padding"
        )
    gone = [name for name in sorted(lost) if not matches(name, unused)]
    if gone:
        problems += [f"  {line}: copied, but not to a target" for line in named_ranges(gone)]
        problems.append(
            "Add the buffers that the loader fills to the targets, or name these tensors in unused="
        )
    if problems:
        raise FailedPrecondition(
            f"the loader does not fill its targets from the tensors:\n{joined(problems)}"
        )


def _count(target: Target) -> int:
    count = 1
    for n in target.shape:
        count *= n
    return count
