# SPDX-License-Identifier: Apache-2.0
"""What workers hold of a small Qwen3-like checkpoint, in any version, quantised or not.

Worked out for whole tensors, from the formats' definitions, with numpy and ml_dtypes alone.
"""

import dataclasses
import json
import struct

import ml_dtypes
import numpy
import safetensors.numpy

# Nothing is a multiple of a block of 128, and little one of 32.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 80, 192, 4, 2, 48
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0."
QKV = [f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"]
GATE_UP = [f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up")]
FINEST_SCALE = 16


@dataclasses.dataclass(frozen=True)
class Format:
    block: tuple[int, int]  # Rows and columns; 0: all.
    epsilon: float
    suffix: str = "_scale"
    mx: bool = False


FORMATS = {
    "fp8-block": Format((128, 128), 1e-4, "_scale_inv"),
    "fp8-row": Format((1, 0), 1e-10),
    "fp8-tensor": Format((0, 0), 1e-10),
    "mxfp8": Format((1, 32), 0, mx=True),
}


def shapes(vocabulary):
    found = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        f"{LAYER}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{LAYER}self_attn.q_norm.weight": (HEAD_DIM,),
        f"{LAYER}self_attn.k_norm.weight": (HEAD_DIM,),
        f"{LAYER}mlp.down_proj.weight": (HIDDEN, INNER),
        f"{LAYER}input_layernorm.weight": (HIDDEN,),
        f"{LAYER}post_attention_layernorm.weight": (HIDDEN,),
        "model.norm.weight": (HIDDEN,),
    }
    for name, heads in zip(QKV, (HEADS, KV_HEADS, KV_HEADS), strict=True):
        found[name] = (heads * HEAD_DIM, HIDDEN)
    for name in GATE_UP:
        found[name] = (INNER, HIDDEN)
    return found


def write_checkpoint(folder, dtype=ml_dtypes.bfloat16, vocabulary=100, **config):
    """Magnitudes differ by row and column, so that blocks' maxima do, and some rows are zeros."""
    random = numpy.random.default_rng(11)
    tensors = {}
    for name, shape in shapes(vocabulary).items():
        values = random.standard_normal(shape) * numpy.exp2(random.integers(-9, 3, shape))
        values *= numpy.exp2(numpy.arange(shape[0]) // 16 % 5).reshape(-1, *[1] * (len(shape) - 1))
        values[shape[0] // 3 : shape[0] // 2] *= 0 if random.random() < 0.5 else 1e-9
        tensors[name] = values.astype(dtype)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocabulary, **config}))
    return tensors


def read_raw(path):
    """Of each tensor of a safetensors file its dtype's name, its shape and its bytes."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    data = content[8 + header_bytes :]
    found = {}
    for name, entry in json.loads(content[8 : 8 + header_bytes]).items():
        begin, end = entry["data_offsets"]
        found[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return found


def of_version(version, name, tensor):
    """tools/check/change.h: the checkpoint's bits, some of the mantissa flipped."""
    key = ((0xCBF29CE484222325 ^ version) * 0x100000001B3) % 2**64
    for letter in name.encode():
        key = ((key ^ letter) * 0x100000001B3) % 2**64
    x = numpy.arange(tensor.size, dtype=numpy.uint32) * numpy.uint32(0x9E3779B1)
    x += numpy.uint32((key ^ key >> 32) % 2**32)
    x ^= x >> numpy.uint32(15)
    x *= numpy.uint32(0x85EBCA77)
    x ^= x >> numpy.uint32(13)
    x &= numpy.uint32({2: 0x7F, 4: 0x3FFFFF}[tensor.dtype.itemsize])
    bits = tensor.reshape(-1).view(f"u{tensor.dtype.itemsize}")
    return (bits ^ x.astype(bits.dtype)).view(tensor.dtype).reshape(tensor.shape)


def quantise(tensor, form):
    """Codes, and a scale for each element; the scales as they are stored."""
    x = tensor.astype(ml_dtypes.bfloat16).astype(numpy.float32)
    rows, columns = (b or n for b, n in zip(form.block, x.shape, strict=True))
    maxima = numpy.empty_like(x)
    for r in range(0, x.shape[0], rows):
        for c in range(0, x.shape[1], columns):
            block = (slice(r, r + rows), slice(c, c + columns))
            maxima[block] = numpy.abs(x[block]).max()
    maxima = numpy.maximum(maxima, numpy.float32(form.epsilon))
    if form.mx:
        exponents = numpy.frexp(maxima)[1] - 1 - 8
        exponents = numpy.where(maxima == 0, -127, numpy.clip(exponents, -127, 127))
        scales = numpy.ldexp(numpy.float32(1), exponents)
        stored = (exponents + 127).astype(numpy.uint8)
    else:
        scales = stored = maxima / numpy.float32(448)
    scaled = numpy.clip(x * (numpy.float32(1) / scales), -448, 448)
    return scaled.astype(ml_dtypes.float8_e4m3fn), stored


def cells_of(form, origins, column_cuts):
    """How many rows and columns a stored scale is for: blocks, or halves of them, or halves of
    those, until every part of every rank begins where a scale does."""
    cell = []
    for block, cuts in zip(form.block, (origins, column_cuts), strict=True):
        size = block
        while size > 1 and any(cut % size for cut in cuts):
            size //= 2
        assert size in (block, 1) or size >= FINEST_SCALE
        cell.append(size)
    return cell


def share(count, tp, rank):
    return slice(count // tp * rank, count // tp * (rank + 1))


class Reference:
    """The parameters of one of `tp` workers."""

    def __init__(self, tensors, version, tp, form=None, kept=()):
        self.tensors = {n: of_version(version, n, t) for n, t in tensors.items()}
        self.tp, self.form, self.kept = tp, form, kept

    def held(self, rank):
        """Bytes by name."""
        held = {n: t.tobytes() for n, t in self.tensors.items() if t.ndim == 1}
        embedding = self.tensors["model.embed_tokens.weight"]
        padded = numpy.zeros((-(-embedding.shape[0] // 64) * 64, HIDDEN), embedding.dtype)
        padded[: embedding.shape[0]] = embedding
        held["model.embed_tokens.weight"] = padded[share(len(padded), self.tp, rank)].tobytes()
        self._add(held, f"{LAYER}self_attn.qkv_proj.weight", QKV, rank)
        self._add(held, f"{LAYER}mlp.gate_up_proj.weight", GATE_UP, rank)
        for name in (f"{LAYER}self_attn.o_proj.weight", f"{LAYER}mlp.down_proj.weight"):
            self._add(held, name, [name], rank, by_columns=True)
        return held

    def _rows(self, name, rank):
        if name in QKV[1:] and self.tp > KV_HEADS:  # Several ranks have the same head.
            return share(KV_HEADS * HEAD_DIM, KV_HEADS, rank // (self.tp // KV_HEADS))
        return share(self.tensors[name].shape[0], self.tp, rank)

    def _cut(self, name, rank, by_columns):
        if by_columns:
            return (slice(None), share(self.tensors[name].shape[1], self.tp, rank))
        return (self._rows(name, rank), slice(None))

    def _cells(self, names, by_columns):
        if by_columns:
            cuts = [self._cut(names[0], r, by_columns)[1].start for r in range(self.tp)]
            return cells_of(self.form, [0], cuts)
        begins = []
        for rank in range(self.tp):
            inside = 0
            for name in names:
                rows = self._rows(name, rank)
                begins += [rows.start, inside]  # Of the tensor, of the fused parameter.
                inside += rows.stop - rows.start
        return cells_of(self.form, begins, [0])

    def _add(self, held, parameter, names, rank, by_columns=False):
        cuts = [(name, self._cut(name, rank, by_columns)) for name in names]
        if self.form is None or parameter in self.kept:
            held[parameter] = b"".join(self.tensors[n][cut].tobytes() for n, cut in cuts)
            return
        cell_rows, cell_columns = self._cells(names, by_columns)
        codes, scales = b"", b""
        for name, cut in cuts:
            code, stored = quantise(self.tensors[name], self.form)
            codes += code[cut].tobytes()
            rows, columns = (
                c or n for c, n in zip((cell_rows, cell_columns), stored[cut].shape, strict=True)
            )
            scales += stored[cut][::rows, ::columns].tobytes()
        held[parameter] = codes
        held[parameter + self.form.suffix] = scales
