"""Quantized tensors in expressions: stored blocks, blocks to encode, and decoded values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError
from lbrx.tensors.codecs.codec import Codec, Weights, codec, is_codec
from lbrx.tensors.dtype import DTYPES, DTypeLike, dtype
from lbrx.tensors.expr import F32, Coded, Expr, Reduce, Rows, Source, Stored, View, cast
from lbrx.tensors.shape import Layout, Shape, checked_number
from lbrx.tensors.storage import Storage
from lbrx.tensors.views import row_breaks

U8 = DTYPES["u8"]
StoredKey = int | tuple[int, int]
SCHEMES = {"int8": 8, "int4": 4, "int2": 2}  # integer encodings and their bits
DEFAULT_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class QuantizationInfo:
    """How a tensor is quantized.

    ``scales`` and ``zero_points`` are tensors if the scheme stores them separately from the codes. They are None if
    they are inside the blocks, as in GGUF types.
    """

    scheme: str  # such as "q4_k"
    bits: float  # per weight, including scales
    group_size: int
    scales: Any = None
    zero_points: Any = None


def codec_info(codec: Codec) -> QuantizationInfo:
    """Return the description of a codec whose scales are inside its blocks."""
    return QuantizationInfo(scheme=codec.name, bits=codec.bits, group_size=codec.block_elements)


class Blocks(Coded):
    """Stored quantized blocks.

    ``coding`` and ``numbers`` are set if scales and offsets are stored separately from the codes. None means zeros.
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
        """The bytes as a u8 vector."""
        return Source(self.storage, U8, Layout.contiguous((self.nbytes,)))

    @property
    def values(self) -> Decode:
        if self._values is None:
            coding = self.coding or codec(self.codec)
            self._values = Decode((self.stored, *self.numbers), coding, Layout.contiguous(self.shape))
        return self._values


class Encoding:
    """Values to encode with a codec. ``importance`` has an f32 for each column (see `Codec`)."""

    __slots__ = ("blocks", "codec", "importance", "values")

    def __init__(self, values: Expr, codec: Codec, importance: Weights | None = None) -> None:
        self.blocks = codec.nbytes(values.shape) // codec.block_bytes
        self.values = _in_whole_blocks(cast(values, F32))
        self.codec = codec
        self.importance = None if importance is None else codec.checked_importance(importance, values.shape)


def _in_whole_blocks(values: Expr) -> Expr:
    """Return values that a pass can compute in whole blocks; reduced rows and joined vectors are stored first."""
    if isinstance(values, Reduce) or (len(values.shape) == 1 and row_breaks(values)):
        return Stored(values, Layout.contiguous(values.shape))
    return values


class Encode(Coded):
    """Blocks that are encoded from values when they are stored.

    With a ``part``, this is one of the tensors of a codec that has several. Parts that are stored together are encoded
    in one pass over the values.
    """

    __slots__ = ("_values", "encoding", "part")
    facts = ("part",)

    def __init__(self, encoding: Encoding, part: int | None = None) -> None:
        shape, self.codec, dtype = encoding.values.shape, encoding.codec.name, F32
        if part is not None:
            own = encoding.codec.parts[part]
            self.codec, dtype = own.type_name, DTYPES.get(own.type_name, F32)
            shape = (*shape[:-1], shape[-1] // encoding.codec.block_elements * own.block_elements)
        super().__init__(dtype, shape, args=(encoding.values,))
        self.encoding = encoding
        self.part = part
        self._values: Decode | None = None

    @property
    def nbytes(self) -> int:
        own = self.encoding.codec
        return self.encoding.blocks * (own.parts[self.part].block_bytes if self.part else own.block_bytes)

    @property
    def parts(self) -> tuple[Encode, ...]:
        """The parts to store."""
        if self.part is not None or not self.encoding.codec.parts:
            return (Encode(self.encoding, self.part),)
        return tuple(Encode(self.encoding, number) for number in range(len(self.encoding.codec.parts)))

    @property
    def numbers(self) -> tuple[Expr | None, ...]:
        """The numbers stored separately from the codes, as in Blocks."""
        return self._filled(self.parts[1:])

    def _filled(self, numbers: Sequence[Expr]) -> tuple[Expr | None, ...]:
        return (*numbers, *[None] * (len(self.encoding.codec.numbers) - len(numbers)))

    @property
    def values(self) -> Expr:
        if self.part is not None:
            if self.codec not in DTYPES:
                codec(self.codec)  # raises: words have no values of their own
            return self
        if self._values is None:
            parts = (self.parts[0], *self.numbers)
            self._values = Decode(parts, self.encoding.codec, Layout.contiguous(self.shape))
        return self._values

    def stored_in(self, storages: Sequence[Storage]) -> Source | Blocks:
        """Return the same tensor, stored: one storage for each part."""
        sources = [
            Source(storage, part.dtype, Layout.contiguous(part.shape))
            for storage, part in zip(storages, self.parts, strict=True)
        ]
        if self.part is None:
            return Blocks(storages[0], self.codec, self.shape, self.encoding.codec, self._filled(sources[1:]))
        return sources[0] if self.codec in DTYPES else Blocks(storages[0], self.codec, self.shape)


class Decode(View):
    """The f32 values of blocks, decoded as they are read.

    ``parts`` are the bytes of the blocks, then the numbers that the codec stores separately. None means zeros.
    """

    __slots__ = ("__weakref__", "codec", "given")
    facts = ("codec", "given", "layout")

    def __init__(self, parts: tuple[Expr | None, ...], codec: Codec, layout: Layout, rows: Rows | None = None) -> None:
        args = tuple(part for part in parts if part is not None)
        super().__init__(F32, layout, rows, all(is_stored(part) for part in args), args)
        self.given = tuple(part is not None for part in parts)
        self.codec = codec

    @property
    def parts(self) -> tuple[Expr | None, ...]:
        args = iter(self.args)
        return tuple(next(args) if is_given else None for is_given in self.given)

    def through(self, layout: Layout, rows: Rows | None = None) -> Expr:
        """Return a view. A tensor without axes is stored first, because only passes decode."""
        if layout.shape:
            return Decode(self.parts, self.codec, layout, rows)
        single = Decode(self.parts, self.codec, Layout((1,), (0,), layout.offset), rows)
        return Stored(single, Layout.contiguous(()))


def is_stored(expr: Expr) -> bool:
    """Return whether an expression is an entire storage."""
    return isinstance(expr, View) and expr.in_storage and expr.is_whole


def stored_key(expr: Expr) -> StoredKey:
    """Return the key of a stored expression. Parts of one encoding are identified by their number."""
    return (id(expr.encoding), expr.part or 0) if isinstance(expr, Encode) else id(expr)


def stored_bytes(type_name: DTypeLike, shape: Shape) -> int:
    """Return the bytes of a tensor of a dtype or codec.

    >>> stored_bytes("bf16", (2, 32)), stored_bytes("q8_0", (2, 32))
    (128, 68)
    """
    blocks = _codec_of(type_name)
    return dtype(type_name).nbytes(math.prod(shape)) if blocks is None else blocks.nbytes(shape)


def stored_expr(storage: Storage, type_name: DTypeLike, shape: Shape, offset: int = 0) -> Source | Blocks:
    """Return elements of a dtype, or blocks of a codec, that begin at a byte of a storage."""
    nbytes, offset = stored_bytes(type_name, shape), checked_number(offset, "the offset")
    if offset < 0 or offset + nbytes > storage.nbytes:
        raise ShapeError(
            f"a tensor of {type_name} and shape {shape} needs {nbytes} bytes from byte {offset}, "
            f"but the storage has {storage.nbytes}"
        )
    if (offset, nbytes) != (0, storage.nbytes):
        storage = storage.piece(offset, nbytes)
    blocks = _codec_of(type_name)
    if blocks is None:
        return Source(storage, dtype(type_name), Layout.contiguous(shape))
    return Blocks(storage, blocks.name, shape)


def _codec_of(type_name: DTypeLike) -> Codec | None:
    return codec(type_name) if isinstance(type_name, str) and is_codec(type_name.lower()) else None
