# SPDX-License-Identifier: Apache-2.0
"""The embedded image: which GPUs it has code for, as its own headers say."""

import struct
from pathlib import Path

import pytest

IMAGE = Path("kernels/cuda/waybill_kernels.fatbin")
PTX, SASS = 1, 2


def entries(image):
    """(kind, compute capability) of every entry of a fat binary; it may be several, end to end."""
    at = 0
    while at < len(image):
        magic, version, header_bytes, size = struct.unpack_from("<IHHQ", image, at)
        assert (magic, version) == (0xBA55ED50, 1)
        at += header_bytes
        end = at + size
        while at < end:
            kind, _, header_bytes, size = struct.unpack_from("<HHIQ", image, at)
            (capability,) = struct.unpack_from("<I", image, at + 28)
            yield kind, capability
            at += header_bytes + size


def test_holds_code_for_every_gpu_that_we_name():
    image = IMAGE.read_bytes()
    if not image:
        pytest.skip("built without CUDA (WAYBILL_CUDA=0)")
    assert sorted(entries(image)) == [(PTX, 80), (SASS, 80), (SASS, 90), (SASS, 100)]
