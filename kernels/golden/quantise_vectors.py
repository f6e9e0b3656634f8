#!/usr/bin/env python3
"""Test vectors of quantisation, worked out with numpy and ml_dtypes from the definitions alone.

Shares no code with the C++. quantise_vectors.txt is its output, one case a line: what it is, the
inputs' names, and the results' bits, or their hash where there are many (FNV-1a of 64 bits, over
the bytes). ml_dtypes casts by the rules of the Open Compute Project; what it makes of values past
the largest never shows, since all are clamped first. NaNs are made 0x7f with their sign.
"""

import ml_dtypes
import numpy as np

WIDE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
NARROW = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
MANTISSA_BITS = {"e4m3": 3, "e5m2": 2}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
M64 = (1 << 64) - 1


def fnv(array):
    """FNV-1a, which is defined byte by byte."""
    value = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        value = (value ^ byte) * 0x100000001B3 & M64
    return f"{value:016x}"


def mix(x):
    """The finaliser of splitmix64, on an array."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def as_f32(array):
    return array.astype(np.float32)


def to_narrow(values, narrow):
    """Codes of f32 values: clamped, then cast."""
    clamped = np.clip(values, -LARGEST[narrow], LARGEST[narrow])
    codes = clamped.astype(NARROW[narrow]).view(np.uint8)
    return np.where(np.isnan(values), np.where(np.signbit(values), 0xFF, 0x7F), codes).astype(
        np.uint8
    )


def all_inputs(wide):
    """Every pattern of 16 bits; of 32 bits every upper half with a few lower ones."""
    high = np.arange(1 << 16, dtype=np.uint32)
    if wide != "f32":
        return high.astype(np.uint16).view(WIDE[wide])
    lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    return (high[:, None] << 16 | lows[None, :]).reshape(-1).view(np.float32)


def casts():
    for wide in WIDE:
        for narrow in NARROW:
            codes = to_narrow(as_f32(all_inputs(wide)), narrow)
            yield f"cast {wide} {narrow} {fnv(codes)}"
    for narrow in NARROW:
        codes = np.arange(256, dtype=np.uint8)
        values = codes.view(NARROW[narrow]).astype(np.float32)
        bits = values.view(np.uint32)
        nan = (codes.astype(np.uint32) & 0x80) << 24 | 0x7FC00000
        values = np.where(np.isnan(values), nan, bits).astype(np.uint32).view(np.float32)
        yield f"decode {narrow} {fnv(values)}"
    values = all_inputs("f32")
    nan = np.where(np.signbit(values), 0xFE00, 0x7E00)
    rounded = np.where(np.isnan(values), nan, values.astype(np.float16).view(np.uint16))
    yield f"round f32 f16 {fnv(rounded.astype(np.uint16))}"


ROUNDINGS = ["none", "power_of_two_up", "floor_exponent", "even_exponent", "ceil_exponent"]
DIVISIONS = ["multiply_by_reciprocal", "multiply_by_largest_over_maximum", "divide"]


def exponent_of_scale(maximum, narrow, rounding):
    largest_exponent = int(np.frexp(LARGEST[narrow])[1]) - 1
    if rounding == "power_of_two_up":
        fraction, exponent = np.frexp(np.float32(maximum / LARGEST[narrow]))
        if fraction == 0:  # Below the least float.
            return -127
        return int(exponent) - 1 if fraction == 0.5 else int(exponent)
    fraction, exponent = np.frexp(maximum)
    exponent = int(exponent) - 1
    if rounding == "ceil_exponent" and fraction != 0.5:
        exponent += 1
    if rounding == "even_exponent":
        unit = 2.0 ** -(MANTISSA_BITS[narrow] + 1)
        exponent += bool(np.floor(float(fraction) / unit + 0.5) * unit >= 1)
    return exponent - largest_exponent


def scale_of(maximum, narrow, rounding, division, epsilon):
    """The scale and the factor of a block's maximum, each an f32."""
    one = np.float32(1)
    largest = LARGEST[narrow]
    maximum = np.maximum(np.float32(maximum), np.float32(epsilon))
    if rounding == "none":
        maximum = np.maximum(maximum, largest * np.finfo(np.float32).tiny)
        scale = maximum / largest
        if division == "multiply_by_largest_over_maximum":
            return scale, largest / maximum
    elif maximum == 0:
        scale = np.float32(2.0**-127)
    else:
        exponent = exponent_of_scale(maximum, narrow, rounding)
        scale = np.float32(2.0 ** min(max(exponent, -127), 127))
    return scale, scale if division == "divide" else one / scale


def maxima_for_scales():
    """Bits of maxima: some by hand, others at random over all exponents."""
    by_hand = [0, 1, 0x00400000, 0x00400001, 0x00800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF]
    by_hand += [0x43E00000, 0x43E00001, 0x43DFFFFF, 0x47600000, 0x38D1B717, 0x3FF00000, 0x3FEFFFFF]
    by_hand += [0x3FF80000, 0x3FE00000]
    at_random = mix(np.arange(1, 41, dtype=np.uint64)) % np.uint64(0x7F800000)
    return np.array(by_hand + at_random.tolist(), dtype=np.uint32)


def scales():
    for narrow in NARROW:
        for rounding in ROUNDINGS:
            for division in DIVISIONS:
                for epsilon in ["0", "1e-10", "1e-4"]:
                    found = np.array(
                        [
                            scale_of(m, narrow, rounding, division, np.float32(epsilon))
                            for m in maxima_for_scales().view(np.float32)
                        ],
                        dtype=np.float32,
                    )
                    yield f"scales {narrow} {rounding} {division} {epsilon} {fnv(found)}"


def matrix(wide, rows, columns, seed):
    """Values of all magnitudes within 2^-7 and 2^-46, and some zeros."""
    u = mix(np.arange(rows * columns, dtype=np.uint64) + np.uint64(seed << 32))
    mantissa = (u >> np.uint64(40)).astype(np.int64) - (1 << 23)
    exponent = -30 - (u & np.uint64(15)).astype(np.int64)
    values = np.ldexp(mantissa.astype(np.float64), exponent).astype(np.float32)
    values[(u >> np.uint64(4)) % np.uint64(64) == 0] = 0
    return values.reshape(rows, columns).astype(WIDE[wide])


def quantise(values, narrow, block, rounding, division, epsilon):
    """Codes and scales of an f32 matrix."""
    rows, columns = values.shape
    block_rows, block_columns = min(block[0], rows), min(block[1], columns)
    grid_rows, grid_columns = -(-rows // block_rows), -(-columns // block_columns)
    codes = np.zeros((rows, columns), np.uint8)
    scale_matrix = np.zeros((grid_rows, grid_columns), np.float32)
    for i in range(grid_rows):
        for j in range(grid_columns):
            at = np.s_[
                i * block_rows : (i + 1) * block_rows, j * block_columns : (j + 1) * block_columns
            ]
            part = values[at]
            scale, factor = scale_of(np.abs(part).max(), narrow, rounding, division, epsilon)
            scale_matrix[i, j] = scale
            codes[at] = to_narrow(part / factor if division == "divide" else part * factor, narrow)
    return codes, scale_matrix


WHOLE = 1 << 20
BLOCK_CASES = [
    # type, via, narrow, block, rounding, division, epsilon, rows, columns
    ("bf16", "bf16", "e4m3", (128, 128), "none", "multiply_by_reciprocal", "1e-4", 256, 320),
    ("bf16", "bf16", "e4m3", (128, 128), "none", "multiply_by_largest_over_maximum", "0", 200, 130),
    ("bf16", "bf16", "e4m3", (128, 128), "none", "divide", "1e-4", 129, 257),
    ("f32", "bf16", "e4m3", (128, 128), "none", "multiply_by_reciprocal", "1e-10", 128, 200),
    ("f32", "f32", "e4m3", (64, 64), "none", "divide", "1e-10", 100, 100),
    ("f32", "f16", "e5m2", (64, 64), "none", "multiply_by_reciprocal", "0", 70, 190),
    ("f16", "f16", "e4m3", (1, WHOLE), "none", "multiply_by_reciprocal", "1e-4", 9, 333),
    ("bf16", "bf16", "e5m2", (WHOLE, WHOLE), "none", "multiply_by_reciprocal", "0", 33, 77),
    ("bf16", "bf16", "e4m3", (128, 128), "power_of_two_up", "divide", "1e-4", 256, 256),
    ("bf16", "bf16", "e4m3", (1, 32), "floor_exponent", "multiply_by_reciprocal", "0", 40, 416),
    ("bf16", "bf16", "e5m2", (1, 32), "floor_exponent", "multiply_by_reciprocal", "0", 40, 400),
    ("f32", "f32", "e4m3", (1, 32), "even_exponent", "multiply_by_reciprocal", "0", 40, 416),
    ("f16", "f16", "e4m3", (1, 32), "ceil_exponent", "divide", "0", 40, 416),
    ("bf16", "bf16", "e4m3", (1, 32), "power_of_two_up", "multiply_by_reciprocal", "0", 40, 416),
]


def blocks():
    for case in BLOCK_CASES:
        wide, via, narrow, block, rounding, division, epsilon, rows, columns = case
        values = as_f32(matrix(wide, rows, columns, seed=7).astype(WIDE[via]))
        codes, scale_matrix = quantise(
            values, narrow, block, rounding, division, np.float32(epsilon)
        )
        values_again = (
            as_f32(codes.view(NARROW[narrow]))
            * np.repeat(
                np.repeat(scale_matrix, min(block[0], rows), 0)[:rows], min(block[1], columns), 1
            )[:, :columns]
        )
        yield (
            f"blocks {wide} {via} {narrow} {block[0]} {block[1]} {rounding} {division} {epsilon} "
            f"{rows} {columns} {fnv(codes)} {fnv(scale_matrix)} {fnv(as_f32(values_again))}"
        )


def vectors():
    with np.errstate(all="ignore"):
        yield from casts()
        yield from scales()
        yield from blocks()


if __name__ == "__main__":
    print("\n".join(vectors()))
