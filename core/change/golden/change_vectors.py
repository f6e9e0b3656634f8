#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Test vectors of the encoding of changed chunks, worked out from README.md's definition alone.

Shares no code with the C++. change_vectors.txt is its output, with two kinds of lines:

    bytes ELEMENT_BYTES BEFORE NEWEST ENCODING
    pattern ELEMENT_BYTES ELEMENTS ROW_ELEMENTS PERMILLE KIND ENCODING_BYTES SHA256

The first has hexadecimal bytes, or - for none. In the second, element i before is random(4 * i) mod
2^w. It changes if random(4 * (i // ROW_ELEMENTS) + 1) mod 1000 is below PERMILLE: by a distance
whose magnitude m and sign come from r = random(4 * i + 2), or to r mod 2^w.
"""

import hashlib

M64 = (1 << 64) - 1
BLOCK_ELEMENTS = 16384


def random(x):
    x = (x + 1) * 0x9E3779B97F4A7C15 & M64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def order(x, w):
    sign = 1 << (w - 1)
    return x ^ (sign - 1) if x & sign else x


def moved(x, distance, w):
    return order((order(x, w) + distance) % (1 << w), w)


# Bits are text, in the order in which they are written.


def low_bits(number, width):
    return "".join(str(number >> i & 1) for i in range(width))


def to_bytes(bits):
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def smallest_k(values, share):
    k = 0
    while sum(v < 1 << k for v in values) < share * len(values):
        k += 1
    return k


def rice(gap, k):
    q = gap >> k
    return "0" * q + "1" + low_bits(gap, k) if q < 16 else "0" * 16 + low_bits(gap, 14)


def exp_golomb(m, k):
    x = m + (1 << k)
    z = x.bit_length() - 1 - k
    return "0" * z + "1" + low_bits(x, z + k)


def encode_block(before, newest, w):
    changed = [i for i, (a, b) in enumerate(zip(before, newest, strict=True)) if a != b]
    if not changed:
        return bytes(3)
    gaps = [i - (p + 1) for p, i in zip([-1, *changed], changed, strict=False)]
    starts = [n for n, gap in enumerate(gaps) if gap or n == 0]
    ends = [*starts[1:], len(changed)]
    runs = [(changed[a], b - a) for a, b in zip(starts, ends, strict=True)]
    count, index_code = len(changed), smallest_k(gaps, 3 / 8)
    indices = to_bytes("".join(rice(gap, index_code) for gap in gaps))
    if 4 * len(runs) < len(indices):
        count, index_code = len(runs), 15
        indices = b"".join(n.to_bytes(2, "little") for run in runs for n in run)

    half = 1 << (w - 1)
    ds = [(order(newest[i], w) - order(before[i], w) + half) % (2 * half) - half for i in changed]
    value_code = smallest_k([abs(d) - 1 for d in ds], 1 / 2)
    values = to_bytes("".join(exp_golomb(abs(d) - 1, value_code) + "01"[d < 0] for d in ds))
    if len(values) >= len(changed) * w // 8:
        value_code = 31
        values = b"".join(newest[i].to_bytes(w // 8, "little") for i in changed)
    return (count | index_code << 15 | value_code << 19).to_bytes(3, "little") + indices + values


def encode(before, newest, element_bytes):
    if before == newest:
        return b"\0"
    encoding = bytes([0x10 | element_bytes])
    for at in range(0, len(before), BLOCK_ELEMENTS):
        block = slice(at, at + BLOCK_ELEMENTS)
        encoding += encode_block(before[block], newest[block], 8 * element_bytes)
    whole = b"\1" + b"".join(x.to_bytes(element_bytes, "little") for x in newest)
    return min(encoding, whole, key=len) if len(encoding) != len(whole) else whole


def pattern(element_bytes, elements, row_elements, permille, kind):
    w = 8 * element_bytes
    before = [random(4 * i) % (1 << w) for i in range(elements)]
    newest = list(before)
    for i in range(elements):
        if random(4 * (i // row_elements) + 1) % 1000 >= permille:
            continue
        r = random(4 * i + 2)
        sign = -1 if r >> 63 else 1
        if kind == "unit":  # m is 0.
            newest[i] = moved(before[i], sign, w)
        elif kind == "tail":  # m is r mod 2^(w-1), shifted down by random(4 * i + 3) mod w.
            m = r % (1 << (w - 1)) >> random(4 * i + 3) % w
            newest[i] = moved(before[i], sign * (m + 1), w)
        else:
            newest[i] = r % (1 << w)
    return before, newest


# BF16: 1 and its neighbours, the zeros, the ends of the scale, NaNs of both signs.
EDGES = [0x3F80, 0x3F81, 0x3F7F, 0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x7FFF]

PATTERNS = [
    (width, *case)
    for width in (1, 2, 4)
    for case in [
        (1, 1, 1000, "unit"),
        (16384, 1, 10, "unit"),
        (40000, 1, 10, "tail"),
        (16385, 1, 100, "tail"),
        (20000, 1, 500, "unit"),
        (16384, 1, 1000, "unit"),
        (40000, 384, 50, "any"),
        (40000, 384, 50, "tail"),
        (20000, 1, 1000, "any"),
        (40000, 1, 0, "any"),
        (50000, 30000, 500, "unit"),
        (16384, 1, 1, "any"),
    ]
]


def text(data):
    return data.hex() or "-"


def vectors():
    small = [([], [], 2), ([1, 2, 3], [1, 2, 3], 1)]
    small += [([EDGES[0]] * 40, [EDGES[0]] * 33 + [edge] + [EDGES[0]] * 6, 2) for edge in EDGES]
    small += [(EDGES * 3, EDGES + EDGES[::-1] + EDGES, 2)]
    small += [([0] * 33, [0] * 30 + [edge, 0, 0], 4) for edge in (1, 2**31, 2**32 - 1)]
    small += [([0x38] * 24, [0x38] * 20 + [edge] + [0x38] * 3, 1) for edge in (0x39, 0xB8, 0xFF)]
    for before, newest, element_bytes in small:
        raw = [b"".join(x.to_bytes(element_bytes, "little") for x in v) for v in (before, newest)]
        encoding = encode(before, newest, element_bytes)
        yield f"bytes {element_bytes} {text(raw[0])} {text(raw[1])} {text(encoding)}"
    for case in PATTERNS:
        encoding = encode(*pattern(*case), case[0])
        parts = [*case, len(encoding), hashlib.sha256(encoding).hexdigest()]
        yield " ".join(["pattern", *map(str, parts)])


if __name__ == "__main__":
    print("\n".join(vectors()))
