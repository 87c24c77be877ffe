"""Quantized tensors in expressions: blocks as they are stored, and their values."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec, codec
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import F32, Coded, Expr, Rows, Source, Stored, View
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.storage import Storage

U8 = DTYPES["u8"]


class Blocks(Coded):
    """Quantized blocks as they are stored.

    ``coding`` and ``numbers`` are given if scales and offsets are stored apart from the codes; None stands for zeros.
    """

    __slots__ = ("_values", "coding", "numbers", "storage")

    def __init__(
        self,
        storage: Storage,
        codec: str,
        shape: Shape,
        coding: Codec | None = None,
        numbers: tuple[Expr | None, ...] = (),
    ) -> None:
        super().__init__(F32, shape, is_simple=True)
        self.storage = storage
        self.codec = codec
        self.coding = coding
        self.numbers = numbers
        self._values: Decode | None = None

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes

    @property
    def stored(self) -> Source:
        """The bytes."""
        return Source(self.storage, U8, Layout.contiguous((self.nbytes,)))

    @property
    def values(self) -> Decode:
        if self._values is None:
            coding = self.coding or codec(self.codec)
            self._values = Decode((self.stored, *self.numbers), coding, Layout.contiguous(self.shape))
        return self._values


class Decode(View):
    """The f32 values of blocks, decoded as they are read.

    ``parts`` are the bytes of the blocks, then the numbers that the codec keeps apart from them; None stands for zeros.
    """

    __slots__ = ("codec", "parts")

    def __init__(self, parts: tuple[Expr | None, ...], codec: Codec, layout: Layout, rows: Rows | None = None) -> None:
        super().__init__(F32, layout, rows, is_simple=all(part is None or is_stored(part) for part in parts))
        self.parts = parts
        self.codec = codec

    def through(self, layout: Layout, rows: Rows | None = None) -> Expr:
        """A single value, without axes, is stored first, because only passes decode."""
        if layout.shape:
            return Decode(self.parts, self.codec, layout, rows)
        single = Decode(self.parts, self.codec, Layout((1,), (0,), layout.offset), rows)
        return Stored(single, Layout.contiguous(()))


def is_stored(expr: Expr) -> bool:
    """Whether an expression is all of a storage."""
    return isinstance(expr, Source) and expr.is_whole
