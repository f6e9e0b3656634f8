# SPDX-License-Identifier: Apache-2.0
"""Watches what a loader does to tensors on `meta`, and keeps every copy as a Write.

torch computes each view itself. Only operations that write, or that create storage, are modelled here: each function
below with `_models` says which. Every other operation makes its result unknown, with the operation's name and the
tensors that it read; this is an error only if a target gets such elements.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.overrides import (  # type: ignore[import-not-found, unused-ignore]
    TorchFunctionMode,
)
from torch.utils._python_dispatch import (  # type: ignore[import-not-found, unused-ignore]
    TorchDispatchMode,
)

from waybill.errors import InvalidArgument
from waybill.memory import dense_strides
from waybill.strided import View
from waybill.torch.lineage import (
    BETWEEN,
    SOURCE,
    TARGET,
    Buffer,
    Constant,
    Conversion,
    Elsewhere,
    Storage,
    Unknown,
    Write,
)

aten = torch.ops.aten

_VALUES = "the loader reads the value of {}"


class ValueRead(Exception):
    """Ends a loader that depends on values."""


class _Value(float):
    """What item() returns while recording: it can be filled into a tensor, and nothing else."""

    tensor: Any
    refuse: Callable[[], None]


def _refuse_value(self: _Value, *_: Any) -> Any:
    self.refuse()


for _operation in (
    "abs add bool divmod eq float floordiv ge gt hash int le lt mod mul ne neg pos pow radd rdivmod rfloordiv rmod "
    "rmul round rpow rsub rtruediv sub truediv trunc"
).split():
    setattr(_Value, f"__{_operation}__", _refuse_value)


# Operations whose result is a view, or the tensor itself, but which torch does not mark as such.
_SAME_STORAGE = {
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
    aten._unsafe_view.default,
}
# Operations that make new memory, and its elements: of one value, not set, or of the value that is the last argument.
_UNSET, _LAST_ARGUMENT = None, "last argument"
_FACTORIES: dict[str, Any] = {
    "full": _LAST_ARGUMENT,
    "full_like": _LAST_ARGUMENT,
    "new_full": _LAST_ARGUMENT,
    "zeros": 0.0,
    "new_zeros": 0.0,
    "zeros_like": 0.0,
    "ones": 1.0,
    "new_ones": 1.0,
    "ones_like": 1.0,
    "empty_like": _UNSET,
    "new_empty": _UNSET,
    "new_empty_strided": _UNSET,
}

_Model = Callable[..., Any]
_MODELS: dict[Any, _Model] = {}


def _models(*operations: Any) -> Callable[[_Model], _Model]:
    def register(model: _Model) -> _Model:
        _MODELS.update(dict.fromkeys(operations, model))
        return model

    return register


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _view_of(tensor: Any) -> View:
    return View(tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def _tensors_in(arguments: Iterable[Any]) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors_in(argument)


def operation_name(operation: Any) -> str:
    """Returns the name of an operation as "aten.add", without its overload."""
    return str(operation).rsplit(".", 1)[0]


class Tracer(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Traces the copies that are made while it is entered, on this thread.

    targets  Tensors on `meta`, by name. Memory that two of them share entirely counts for the first name.
    """

    def __init__(self, targets: Mapping[str, Any]) -> None:
        super().__init__()
        self.targets: dict[str, Buffer] = {}
        self.sources: dict[str, Buffer] = {}
        # What the loader reads while it runs, instead of copying it.
        self.refusals: list[str] = []
        self.copied: set[str] = set()
        self.last_source = ""
        self.item_names: dict[str, None] = {}  # Of what item() was called for, in order.
        self._storages: dict[int, Storage] = {}
        self._is_view: dict[Any, bool] = {}
        # The stand-ins for collective operations on weights. There are none while a loader is recorded.
        self.collectives: dict[Any, Callable[..., Any]] = {}
        self._add_memory(TARGET, targets, self.targets)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If this were true, torch would wrap each operation in a call that turns its compiler off. Nothing is compiled here.
        return False

    def add_held(self, tensors: Mapping[str, Any]) -> None:
        """Names the tensors that a rank holds, as sources. They are on `meta`, and may share storages as targets may."""
        self._add_memory(SOURCE, tensors, self.sources)

    def add_shards(self, name: str, whole: Any, shards: Iterable[tuple[Any, Any]]) -> None:
        """Names a whole tensor, and copies to its places what this rank holds of it. Other ranks hold the rest.

        shards  Pairs of a view of the whole tensor, and of the same elements in a source.
        """
        self._track(whole, BETWEEN, name)
        self.gathered(whole, whole, own=False)
        for to, of in shards:
            self.write(to, of)

    def _add_memory(
        self, kind: str, tensors: Mapping[str, Any], buffers: dict[str, Buffer]
    ) -> None:
        by_storage: dict[int, list[tuple[int, int, str, Any]]] = {}
        for name, tensor in tensors.items():
            if tensor.device.type != "meta":
                raise InvalidArgument(
                    f'{kind} "{name}" is on {tensor.device}: record on a twin, as waybill.torch.meta_twin() makes it'
                )
            if tensor.numel():
                begin, end = _view_of(tensor).span()
                by_storage.setdefault(_key(tensor), []).append((begin, end, name, tensor))
        for key, placed in by_storage.items():
            placed.sort(key=lambda p: p[:2])
            self._storages[key] = self._storage_of(kind, placed, buffers)

    def _storage_of(
        self, kind: str, placed: list[tuple[int, int, str, Any]], named: dict[str, Buffer]
    ) -> Storage:
        buffers: list[Buffer] = []
        first = placed[0][3]
        end = 0
        last: tuple[int, int, str] = (0, 0, "")
        for begin, its_end, name, tensor in placed:
            if (begin, its_end) == last[:2]:
                continue  # Tied.
            if begin < end or tensor.dtype != first.dtype:
                other = last[2] if begin < end else placed[0][2]
                raise InvalidArgument(f'{kind}s "{other}" and "{name}" overlap, or differ in dtype')
            dimensions = sorted(zip(tensor.stride(), tensor.shape), reverse=True)
            shape = tuple(n for _, n in dimensions if n > 1)
            if tuple(s for s, n in dimensions if n > 1) != dense_strides(shape):
                raise InvalidArgument(
                    f'{kind} "{name}" of shape {tuple(tensor.shape)} has strides {tuple(tensor.stride())}, which '
                    "leave memory between its elements: give the whole tensor"
                )
            if begin > end:
                buffers.append(Buffer(BETWEEN, "", (begin - end,), tensor.dtype, end))
            buffers.append(Buffer(kind, name, shape, tensor.dtype, begin))
            named[name] = buffers[-1]
            end = its_end
            last = (begin, its_end, name)
        storage = first.untyped_storage()
        room = storage.nbytes() // first.element_size()
        if room > end:
            buffers.append(Buffer(BETWEEN, "", (room - end,), first.dtype, end))
        return Storage(storage, first.dtype, buffers)

    def add_source(self, name: str, tensor: Any) -> None:
        """Names a tensor of the checkpoint, which is on `meta` and dense."""
        self.last_source = name
        self.sources[name] = self._track(tensor, SOURCE, name)

    def _track(self, tensor: Any, kind: str = BETWEEN, name: str = "") -> Buffer:
        """Makes a buffer of a tensor's storage."""
        shape = tuple(tensor.shape)
        storage = tensor.untyped_storage()
        room = storage.nbytes() // tensor.element_size()
        if not tensor.is_contiguous() or room != prod(shape):
            shape = (room,)
        buffer = Buffer(kind, name, shape, tensor.dtype)
        self._storages[int(storage._cdata)] = Storage(storage, tensor.dtype, [buffer])
        return buffer

    def _storage(self, tensor: Any) -> Storage | None:
        try:
            return self._storages.get(_key(tensor))
        except NotImplementedError:
            return None  # A sparse tensor.

    def new(self, shape: Sequence[int], dtype: Any) -> Any:
        """Returns a tensor of the loader's own, for the result of an operation."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self._track(tensor)
        return tensor

    def _names(self, tensors: Iterable[Any]) -> str:
        names: dict[str, None] = {}
        for tensor in tensors:
            storage = self._storage(tensor)
            if storage is None:
                continue
            begins = [buffer.begin for buffer in storage.buffers]
            buffer = storage.buffers[bisect_right(begins, tensor.storage_offset()) - 1]
            names[f'"{buffer.name}"' if buffer.name else "what the loader computed"] = None
        return ", ".join(names)

    def refuse_value(self, tensor: Any) -> None:
        """Ends the loader, because it reads the value of a tensor."""
        self.refusals.append(_VALUES.format(self._names([tensor])))
        raise ValueRead(self.refusals[-1])

    # Writes.

    def write(self, to: Any, of: Any) -> None:
        """Records that tensor `to` gets the elements of `of`, as by copy_()."""
        if not to.numel():
            return
        storage = self._storage(to) or self._track_own(to)
        source = self._storage(of)
        if source is None:
            self._write_origin(storage, to, self._value_of(of))
            return
        if of.shape != to.shape:
            of = of.expand(to.shape)
        for seen, stored in ((to.dtype, storage.dtype), (of.dtype, source.dtype)):
            if seen.itemsize != stored.itemsize:
                names = self._names([to, of])
                why = Unknown(f"elements of {stored} are seen as {seen} in a copy of {names}")
                self._write_origin(storage, to, why)
                return
        conversions = []
        if of.dtype != source.dtype:
            conversions.append(Conversion(False, of.dtype))
        if to.dtype != of.dtype:
            conversions.append(Conversion(True, to.dtype))
        if to.dtype != storage.dtype:
            conversions.append(Conversion(False, storage.dtype))
        for buffer, to_view, its in storage.pieces(_view_of(to), _view_of(of)):
            for origin, of_view, there in source.pieces(its, to_view):
                # A tensor that was overwritten before does not bring its elements.
                if origin.kind == SOURCE and not origin.writes:
                    self.copied.add(origin.name)
                write = Write(there, origin, of_view, tuple(conversions), len(origin.writes))
                buffer.writes.append(write)

    def _track_own(self, tensor: Any) -> Storage:
        """Follows memory of the loader from its first write on."""
        buffer = self._track(tensor)
        before = Unknown("") if tensor.device.type == "meta" else self._value_of(tensor)
        if isinstance(before, Constant):
            buffer.writes.append(Write(buffer.whole, before, buffer.whole, (), 0))
        return self._storages[_key(tensor)]

    def _value_of(self, tensor: Any) -> Constant | Unknown:
        if tensor.device.type == "meta":
            return Unknown("a constant on the meta device is copied, whose value is unknown")
        if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
            return self._constant(float(tensor.flatten()[0]))
        return Unknown("values that the loader computed itself are copied")

    def _constant(self, value: float) -> Constant | Unknown:
        if value != value and self.item_names:
            names = ", ".join(self.item_names)
            return Unknown(f"a value is filled in that the loader computed from item() of {names}")
        return Constant(value)

    def _write_origin(self, storage: Storage, to: Any, origin: Constant | Unknown) -> None:
        view = _view_of(to)
        if to.dtype.itemsize != storage.dtype.itemsize:
            origin = Unknown(f"elements of {storage.dtype} are set as elements of {to.dtype}")
            for buffer in storage.buffers:
                buffer.writes.append(Write(buffer.whole, origin, buffer.whole, (), 0))
            return
        if to.dtype != storage.dtype and origin != Constant(0.0):
            origin = Unknown(f"elements of {storage.dtype} are set as elements of {to.dtype}")
        for buffer, there, _ in storage.pieces(view, view):
            buffer.writes.append(Write(there, origin, there, (), 0))

    def fill(self, to: Any, value: float) -> None:
        """Records that all elements of a tensor are set to a constant."""
        if to.numel():
            storage = self._storage(to) or self._track_own(to)
            self._write_origin(storage, to, self._constant(value))

    def gathered(self, to: Any, of: Any, own: bool) -> None:
        """Records that a collective operation copies a tensor of this rank, or one of another rank, to a tensor."""
        if own:
            self.write(to, of)
        elif to.numel():
            if self._storage(to) is None:
                self._track(to)
            storage = self._storages[_key(to)]
            for buffer, there, _ in storage.pieces(_view_of(to), _view_of(to)):
                buffer.writes.append(Write(there, Elsewhere(), there, (), 0))

    def copied_from(self, tensor: Any) -> Buffer:
        """Returns a buffer that was written once, with the elements of a tensor."""
        copy = self.new(tensor.shape, tensor.dtype)
        self.write(copy, tensor)
        return self._storages[_key(copy)].buffers[0]

    def _make_unknown(self, tensor: Any, reason: str) -> None:
        if tensor.numel():
            storage = self._storage(tensor) or self._track_own(tensor)
            self._write_origin(storage, tensor, Unknown(reason))

    # Operations.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Most operations of a loader are views, of which nothing has to be known.
        is_view = self._is_view.get(func)
        if is_view is None:
            is_view = self._is_view[func] = func.is_view or func in _SAME_STORAGE
        if is_view:
            return func(*args, **kwargs)
        collective = self.collectives.get(func)
        if collective is not None and any(t.is_floating_point() for t in _tensors_in(args)):
            return collective(self, *args)
        for tensor in _tensors_in((*args, *kwargs.values())):
            if self._storage(tensor) is not None:
                break
        else:
            return self._untracked(func, args, kwargs)
        model = _MODELS.get(func)
        if model is not None:
            result = model(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._other(func, args, kwargs)

    def _untracked(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if func is aten._to_copy.default and args[0].device.type != "meta":
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "meta":
                # An index that is sent to where the weights are: its values are needed.
                return func(args[0], **{**kwargs, "device": args[0].device})
        result = func(*args, **kwargs)
        return self._made(func, args, result)

    def _made(self, func: Any, args: tuple[Any, ...], result: Any) -> Any:
        """Follows a new tensor on meta if its elements are known."""
        name = func.__name__.split(".")[0]
        if name in _FACTORIES and result.device.type == "meta":
            self._track(result)
            value = _FACTORIES[name]
            if value is not _UNSET:
                self.fill(result, float(args[-1] if value is _LAST_ARGUMENT else value))
        return result

    def _other(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        name = func.__name__.split(".")[0]
        if name in _FACTORIES:
            return self._made(func, args, func(*args, **kwargs))
        tensors = list(_tensors_in((*args, *kwargs.values())))
        reason = f"{operation_name(func)} computes with {self._names(tensors)}"
        # Tensors of other devices would not mix with those on meta.
        result = func(*to_meta(args), **dict(zip(kwargs, to_meta(kwargs.values()))))
        if func._schema.is_mutable:
            named = dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in _tensors_in([named.get(argument.name)]):
                        self._make_unknown(tensor, reason)
            return result
        for tensor in _tensors_in([result]):
            self._make_unknown(tensor, reason)
        return result


def to_meta(arguments: Iterable[Any]) -> list[Any]:
    """Returns arguments with tensors on `meta` in place of tensors elsewhere."""
    return [
        argument.to("meta")
        if isinstance(argument, torch.Tensor)
        else to_meta(argument)
        if isinstance(argument, (list, tuple))
        else argument
        for argument in arguments
    ]


@_models(aten.copy_.default)
def _copy(tracer: Tracer, to: Any, of: Any, non_blocking: bool = False) -> Any:
    tracer.write(to, of)
    return to


@_models(aten.fill_.Scalar, aten.fill_.Tensor)
def _fill(tracer: Tracer, to: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tracer.write(to, value)
    else:
        tracer.fill(to, float(value))
    return to


@_models(aten.zero_.default)
def _zero(tracer: Tracer, to: Any) -> Any:
    tracer.fill(to, 0.0)
    return to


@_models(aten._to_copy.default, aten.clone.default)
def _cast(tracer: Tracer, of: Any, dtype: Any = None, **_: Any) -> Any:
    result = tracer.new(of.shape, dtype or of.dtype)
    tracer.write(result, of)
    return result


@_models(aten.cat.default)
def _cat(tracer: Tracer, tensors: Sequence[Any], dim: int = 0) -> Any:
    # torch allows empty tensors of one dimension among others.
    given = [tensor for tensor in tensors if tuple(tensor.shape) != (0,)]
    dtype = given[0].dtype
    if any(tensor.dtype != dtype for tensor in given):
        return NotImplemented
    dim %= given[0].dim()
    shape = list(given[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in given)
    result = tracer.new(shape, dtype)
    begin = 0
    for tensor in given:
        tracer.write(result.narrow(dim, begin, tensor.shape[dim]), tensor)
        begin += tensor.shape[dim]
    return result


@_models(aten.stack.default)
def _stack(tracer: Tracer, tensors: Sequence[Any], dim: int = 0) -> Any:
    return _cat(tracer, [tensor.unsqueeze(dim) for tensor in tensors], dim)


@_models(aten.constant_pad_nd.default)
def _pad(tracer: Tracer, of: Any, pad: Sequence[int], value: float = 0) -> Any:
    shape = list(of.shape)
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    result = tracer.new(shape, of.dtype)
    tracer.fill(result, float(value))
    inner = result
    for i in range(len(pad) // 2):
        d, before, after = of.dim() - 1 - i, pad[2 * i], pad[2 * i + 1]  # Negative ones crop.
        inner = inner.narrow(d, max(before, 0), shape[d] - max(before, 0) - max(after, 0))
        of = of.narrow(d, max(-before, 0), inner.shape[d])
    tracer.write(inner, of)
    return result


@_models(aten.repeat.default)
def _repeat(tracer: Tracer, of: Any, repeats: Sequence[int]) -> Any:
    shape = [1] * (len(repeats) - of.dim()) + list(of.shape)
    result = tracer.new([n * times for n, times in zip(shape, repeats)], of.dtype)
    each = result.view([x for n, times in zip(shape, repeats) for x in (times, n)])
    tracer.write(each, of.reshape([x for n in shape for x in (1, n)]).expand(each.shape))
    return result


@_models(aten.index_select.default)
def _index_select(tracer: Tracer, of: Any, dim: int, index: Any) -> Any:
    if (
        index.device.type == "meta"
        or index.dim() > 1
        or index.dtype not in (torch.int32, torch.int64)
    ):
        return NotImplemented
    rows = index.reshape(-1).tolist()
    shape = list(of.shape)
    shape[dim] = len(rows)
    result = tracer.new(shape, of.dtype)
    begin = 0
    while begin < len(rows):
        count = 1
        while begin + count < len(rows) and rows[begin + count] == rows[begin] + count:
            count += 1
        first = rows[begin] % of.shape[dim]
        count = min(count, of.shape[dim] - first)
        tracer.write(result.narrow(dim, begin, count), of.narrow(dim, first, count))
        begin += count
    return result


@_models(aten.index.Tensor)
def _index(tracer: Tracer, of: Any, indices: Sequence[Any]) -> Any:
    used = [d for d, index in enumerate(indices) if index is not None]
    if len(used) != 1 or indices[used[0]].dim() != 1:
        return NotImplemented
    index = indices[used[0]]
    if index.dtype == torch.bool and index.device.type != "meta":
        index = index.nonzero().flatten()
    return _index_select(tracer, of, used[0], index)


@_models(aten._local_scalar_dense.default)
def _local_scalar_dense(tracer: Tracer, of: Any) -> Any:
    return tracer.refuse_value(of)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the process from looking for cycles of garbage meanwhile.

    A recording makes objects by the hundred thousand, and all of them stay. The collector would go through them, and through
    those of the model, again and again, for a sixth of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class ItemWatch(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Lets `parameter.fill_(tensor.item())`, as loaders do with scalars, be the copy that it is."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.item:
            storage = self._tracer._storage(args[0])
            if storage is not None and args[0].is_floating_point() and args[0].numel() == 1:
                return self._read(args[0])
        elif len(args) > 1 and isinstance(args[-1], _Value):
            scalar = args[-1].tensor.reshape(())
            if func is torch.Tensor.fill_:
                return args[0].copy_(scalar)
            if func is torch.Tensor.__setitem__:
                return func(*args[:-1], scalar)
            args[-1].refuse()
        return func(*args, **(kwargs or {}))

    def _read(self, tensor: Any) -> _Value:
        self._tracer.item_names[self._tracer._names([tensor])] = None
        value = _Value("nan")
        value.tensor = tensor
        value.refuse = lambda: self._tracer.refuse_value(tensor)
        return value
