# SPDX-License-Identifier: Apache-2.0
"""Parts of a fused buffer: which boxes of which tensors lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from waybill.errors import InvalidArgument

Ranges = Sequence[tuple[int, int]]


class Part:
    """A box of a tensor that lies in a buffer of another name.

    tensor        The tensor's name.
    shape         The shape of the whole tensor, in elements.
    box           The box that lies here: a half-open range [begin, end) for each dimension; None: all.
    at            Where the box begins in the buffer, an index for each of the buffer's dimensions; None: in
                  column 0 of the row after the previous part. A box with fewer dimensions than the buffer lies
                  in the buffer's last ones: Part("experts.3.w", (8, 4), at=(3, 0, 0)).
    strides       The distances in the buffer, in elements, between neighbours along each dimension of the box;
                  None: those of the buffer's last dimensions. A transposed tensor has them in another order.
                  Strides need `at`.
    content       "plain", "quantised", or "scales", for which the box counts scales.
    quantisation  "fp8-block", "fp8-row", "fp8-tensor", "mxfp8".
    dtype         The dtype of the whole tensor, if it is not the buffer's.

    >>> Part("model.layers.0.self_attn.q_proj.weight", shape=(4096, 1024), box=[(0, 512), (0, 1024)]).extents
    (512, 1024)
    """

    def __init__(
        self,
        tensor: str,
        shape: Sequence[int],
        box: Ranges | None = None,
        at: Sequence[int] | None = None,
        *,
        content: str = "plain",
        quantisation: str = "",
        dtype: object = None,
        strides: Sequence[int] | None = None,
    ) -> None:
        self.tensor = tensor
        self.shape = tuple(shape)
        self.box = tuple((0, n) for n in self.shape) if box is None else tuple(map(tuple, box))
        if len(self.box) != len(self.shape):
            raise InvalidArgument(
                f'part "{tensor}": the box has {len(self.box)} ranges, the shape {len(self.shape)} dimensions'
            )
        self.at = None if at is None else tuple(at)
        self.content = content
        self.quantisation = quantisation
        self.dtype = dtype
        self.strides = None if strides is None else tuple(strides)

    @property
    def extents(self) -> tuple[int, ...]:
        """The size of the box, in elements."""
        return tuple(end - begin for begin, end in self.box)


class Padding:
    """Elements of a buffer that no tensor fills. They are set to zero.

    `at` and `strides` are as those of a Part.

    >>> Padding((24, 1024)).extents
    (24, 1024)
    """

    def __init__(
        self,
        shape: Sequence[int],
        at: Sequence[int] | None = None,
        *,
        strides: Sequence[int] | None = None,
    ) -> None:
        self.extents = tuple(shape)
        self.at = None if at is None else tuple(at)
        self.strides = None if strides is None else tuple(strides)


AnyPart = Union[Part, Padding]
