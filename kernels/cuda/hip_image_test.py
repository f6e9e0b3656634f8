# SPDX-License-Identifier: Apache-2.0
"""The image for AMD's GPUs: which it has code for, and how its kernels do arithmetic."""

import io
import struct
from pathlib import Path

from elftools.elf.elffile import ELFFile

IMAGE = Path("kernels/cuda/waybill_hip_kernels.hipfb")
DESCRIPTOR_BYTES = 64
RSRC1_AT = (
    48  # compute_pgm_rsrc1 of a kernel's descriptor, in LLVM's "User Guide for AMDGPU Backend".
)


def code_objects():
    """(target, ELF file) of each GPU in clang's bundle; the host's entry is empty."""
    image = IMAGE.read_bytes()
    assert image.startswith(b"__CLANG_OFFLOAD_BUNDLE__")
    (count,) = struct.unpack_from("<Q", image, 24)
    at = 32
    for _ in range(count):
        begin, size, length = struct.unpack_from("<QQQ", image, at)
        target = image[at + 24 : at + 24 + length].decode()
        at += 24 + length
        if size:
            yield target.rpartition("-")[2], ELFFile(io.BytesIO(image[begin : begin + size]))


def modes_of_kernels(code):
    """name -> compute_pgm_rsrc1."""
    sections = [s for s in code.iter_sections() if s["sh_addr"] and s["sh_type"] == "SHT_PROGBITS"]
    modes = {}
    for symbol in code.get_section_by_name(".dynsym").iter_symbols():
        if not symbol.name.endswith(".kd"):
            continue
        address = symbol["st_value"]
        section = next(s for s in sections if s["sh_addr"] <= address < s["sh_addr"] + s["sh_size"])
        descriptor = section.data()[address - section["sh_addr"] :][:DESCRIPTOR_BYTES]
        (modes[symbol.name.removesuffix(".kd")],) = struct.unpack_from("<I", descriptor, RSRC1_AT)
    return modes


def test_every_gpu_has_every_kernel():
    kernels = {target: set(modes_of_kernels(code)) for target, code in code_objects()}
    assert {"gfx908", "gfx90a"} <= set(kernels)
    for names in kernels.values():
        assert names == kernels["gfx90a"]
        assert {"WaybillRows16", "WaybillQuantiseMxBf16E4m3Aligned"} <= names


def test_kernels_round_to_nearest_even_and_flush_no_subnormals():
    for target, code in code_objects():
        for name, mode in modes_of_kernels(code).items():
            assert mode >> 12 & 0b1111 == 0, f"{name} on {target} rounds otherwise"
            assert mode >> 16 & 0b1111 == 0b1111, f"{name} on {target} flushes subnormals"
