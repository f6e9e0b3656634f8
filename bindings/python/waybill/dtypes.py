# SPDX-License-Identifier: Apache-2.0
"""The element types, by the names that frameworks have for them."""

from __future__ import annotations

from waybill import _waybill
from waybill.errors import InvalidArgument

_COUNT = 16
# "BF16" to its number, as the C ABI has them.
NUMBERS = {_waybill.dtype_name(number): number for number in range(1, _COUNT + 1)}
NAMES = {number: name for name, number in NUMBERS.items()}

# As torch, numpy, ml_dtypes and JAX spell them.
_SPELLINGS = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "bool": "BOOL",
}
FRAMEWORK_NAMES = {ours: theirs for theirs, ours in _SPELLINGS.items()}

# (code, bits) of DLPack 1.
_DLPACK = {
    (0, 8): "I8",
    (0, 16): "I16",
    (0, 32): "I32",
    (0, 64): "I64",
    (1, 8): "U8",
    (1, 16): "U16",
    (1, 32): "U32",
    (1, 64): "U64",
    (2, 16): "F16",
    (2, 32): "F32",
    (2, 64): "F64",
    (4, 16): "BF16",
    (6, 8): "BOOL",
    (10, 8): "F8_E4M3",
    (12, 8): "F8_E5M2",
    (14, 8): "F8_E8M0",
}

# Of the buffer protocol, in native byte order.
_BUFFER = {
    "b": "I8",
    "B": "U8",
    "c": "U8",
    "?": "BOOL",
    "h": "I16",
    "H": "U16",
    "i": "I32",
    "I": "U32",
    "q": "I64",
    "Q": "U64",
    "l": "I64",
    "L": "U64",
    "e": "F16",
    "f": "F32",
    "d": "F64",
}


def dtype_number(dtype: object) -> int:
    """Returns the number of a dtype of torch, numpy or ml_dtypes, or of a name in either spelling.

    >>> dtype_number("BF16") == dtype_number("bfloat16") == dtype_number("torch.bfloat16")
    True
    """
    # numpy's says its name; its types and ml_dtypes' are classes; torch's prints as "torch.bfloat16".
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).split(".")[-1]
    number = NUMBERS.get(_SPELLINGS.get(name, name.upper()))
    if number is None:
        raise InvalidArgument(
            f"dtype {name!r} cannot be moved; these can: {', '.join(NUMBERS)}; others move as bytes, as U8 on both "
            "sides: tensor.view(torch.uint8)"
        )
    return number


def dlpack_number(code: int, bits: int, lanes: int) -> int:
    """Returns the number of a dtype of DLPack: (code, bits, lanes)."""
    name = _DLPACK.get((code, bits)) if lanes == 1 else None
    if name is None:
        raise InvalidArgument(
            f"DLPack's dtype (code {code}, {bits} bits, {lanes} lanes) cannot be moved; "
            f"these can: {', '.join(NUMBERS)}"
        )
    return NUMBERS[name]


def buffer_number(buffer_format: str) -> int:
    """Returns the number of a format of the buffer protocol."""
    name = _BUFFER.get(buffer_format.lstrip("@="))
    if name is None:
        raise InvalidArgument(
            f"buffer format {buffer_format!r} cannot be moved; these can: {' '.join(_BUFFER)}"
        )
    return NUMBERS[name]
