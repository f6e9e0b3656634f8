#!/usr/bin/env python3
"""The digest's test vectors, worked out from README.md's definition alone.

Shares no code with the C++. Prints "length pattern digest" lines; digest_vectors.txt is its output.
Patterns: zeros; ones (0xff); count (byte i is i mod 251); mix (byte i is the top byte of
i * 0x9e3779b97f4a7c15 mod 2^64).
"""

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1
LEAF_BYTES = 4096


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def constants():
    state = int.from_bytes(b"WAYBILL1", "little")
    while True:
        state = state + 0x9E3779B97F4A7C15 & M64
        yield mix(state)


stream = constants()
KEYS = [next(stream) for _ in range(512)]
OFFSETS = [next(stream) for _ in range(8)]
LEAF_STEP = next(stream) | 1
LENGTH_STEP = next(stream) | 1


def leaf_value(leaf, index):
    lanes = [0] * 8
    leaf = leaf + bytes(-len(leaf) % 8)
    for j in range(len(leaf) // 8):
        word = int.from_bytes(leaf[8 * j : 8 * j + 8], "little")
        low = (word & M32) + (KEYS[j] & M32) & M32
        high = (word >> 32) + (KEYS[j] >> 32) & M32
        lanes[j % 8] = lanes[j % 8] + low * high & M64
        lanes[j % 8 ^ 1] = lanes[j % 8 ^ 1] + word & M64
    total = sum(mix(lane + offset & M64) for lane, offset in zip(lanes, OFFSETS, strict=True))
    return mix(total + (index + 1) * LEAF_STEP & M64)


def digest(data):
    leaves = [data[at : at + LEAF_BYTES] for at in range(0, len(data), LEAF_BYTES)]
    total = sum(leaf_value(leaf, index) for index, leaf in enumerate(leaves))
    return mix(total + (len(data) + 1) * LENGTH_STEP & M64)


PATTERNS = {
    "zeros": lambda n: bytes(n),
    "ones": lambda n: b"\xff" * n,
    "count": lambda n: bytes(i % 251 for i in range(n)),
    "mix": lambda n: bytes((i * 0x9E3779B97F4A7C15 & M64) >> 56 for i in range(n)),
}

LENGTHS = [0, 1, 7, 8, 9, 63, 64, 65, 256, 4095, 4096, 4097, 8192, 12293, 100000]


def vectors():
    for length in LENGTHS:
        for name, make in PATTERNS.items():
            yield f"{length} {name} {digest(make(length)):016x}"


if __name__ == "__main__":
    print("\n".join(vectors()))
