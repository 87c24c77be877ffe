"""The Codec record, and lookup of codecs by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, ShapeError, UsageError, nearest
from lbrx.registry import CODECS, installed, load, load_installed, package_of
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.shape import Shape

Weights = npt.NDArray[np.float32]
Table = Callable[[], npt.NDArray[Any]]
_WORD_BITS = {"u32": 32}  # types of codes that are not dtypes


@dataclass(frozen=True, slots=True)
class Part:
    """A separate tensor that holds some bytes of each block.

    ``encoder`` is the kernel function that writes this part, or "" if the codec's encoder writes all parts.
    """

    type_name: str
    block_bytes: int
    encoder: str = ""

    @property
    def block_elements(self) -> int:
        """Elements of this part per block."""
        bits = _WORD_BITS.get(self.type_name) or DTYPES[self.type_name].bits
        return 8 * self.block_bytes // bits


@dataclass(frozen=True, slots=True)
class Window:
    """The bytes of a part that rows of a matrix are decoded from: ``nbytes`` for every ``rows`` rows."""

    rows: int
    nbytes: int

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Return the bytes for some rows.

        >>> Window(4, 100).span(3, 5)
        (0, 200)
        """
        return first // self.rows * self.nbytes, -(-stop // self.rows) * self.nbytes


@dataclass(frozen=True, slots=True)
class Codec:
    """A type that encodes each block of ``block_elements`` values independently in ``block_bytes`` bytes.

    ``kernels`` is the path of a module, such as ``package.module``, or the name of a module in
    ``lbrx.devices.cpu.kernels.codecs``. Its functions take addresses of f32 values and of blocks:
    ``decode(blocks, values, count)``, ``encode(values, blocks, count)`` and, if the type supports an importance matrix,
    ``encode_weighted(values, blocks, rows, blocks_per_row, weights)``. After the count, a decoder takes the
    addresses of the ``numbers`` of the blocks as f32, its parameters, and the table that ``codebook`` returns.
    Both encoders take the table that ``encoder_table`` returns as their last argument.

    ``parts`` is set if codes, scales and offsets are separate tensors. An encoder of all parts takes the address of an
    int64 array instead of the address of blocks. The array holds the address of each part (0 if the part is not
    wanted), then ``parameters``.

    With ``windows``, a block is a row of a matrix, and its bytes may be anywhere in the parts; there is a window for
    each part. The decoder is ``decode(values, first, count, parts..., parameters..., table)``: ``values`` is the
    address of the values of row ``first``, and a part is addressed by its first byte, of which only the window exists.

    >>> codec("Q4_K").block_bytes, codec("q4_k").bits
    (144, 4.5)
    """

    name: str
    block_elements: int
    block_bytes: int
    kernels: str
    can_encode: bool = True
    takes_imatrix: bool = False
    weighs_whole_rows: bool = False  # with an importance matrix, a block's encoding depends on its whole row
    needs_imatrix: bool = False  # it cannot encode without one
    codebook: Table | None = field(default=None, repr=False)
    encoder_table: Table | None = field(default=None, repr=False)
    encoder: str = "encode"  # the module's function that encodes without an importance matrix
    parameters: tuple[int, ...] = ()  # extra arguments of the encoder
    decoder: str = "decode"
    decoder_parameters: tuple[int, ...] = ()
    numbers: tuple[npt.DTypeLike, ...] = ()  # dtypes of the numbers stored separately per block: scale, then offset
    parts: tuple[Part, ...] = ()
    windows: tuple[Window, ...] = ()
    rows: int = 0  # with windows: of the matrix

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def elements_in(self, nbytes: int) -> int:
        """Return the elements that so many bytes of blocks decode to."""
        return (self.rows if self.windows else nbytes // self.block_bytes) * self.block_elements

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of this shape. Its rows (along the last axis) must be whole blocks."""
        if not shape or shape[-1] % self.block_elements:
            row = f"rows of {shape[-1]} elements" if shape else "no axes"
            raise ShapeError(
                f"a tensor of shape {tuple(shape)} has {row}; "
                f"expected a multiple of {self.block_elements} for {self.name}"
            )
        return math.prod(shape) // self.block_elements * self.block_bytes

    def check_can_encode(self, *, has_importance: bool = True) -> None:
        if not self.can_encode:
            raise UsageError(f"cannot encode as {self.name}, only decode it; expected one of {', '.join(encodable())}")
        if self.needs_imatrix and not has_importance:
            raise UsageError(f"cannot encode as {self.name} without an importance matrix")

    def checked_importance(self, weights: Weights, shape: Sequence[int]) -> Weights:
        """Return an importance matrix as (matrices, columns): one row for all matrices of a tensor, or one for each."""
        if not self.takes_imatrix:
            raise UsageError(f"{self.name} does not support an importance matrix")
        columns, matrices = shape[-1], math.prod(shape[:-2])
        if weights.size not in (columns, matrices * columns) or (weights.ndim > 1 and weights.shape[-1] != columns):
            raise ShapeError(
                f"an importance matrix of shape {weights.shape} does not match a tensor of shape {tuple(shape)}; "
                f"expected ({columns},)" + (f" or ({matrices}, {columns})" if matrices > 1 else "")
            )
        array = np.ascontiguousarray(weights, np.float32).reshape(-1, columns)
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise UsageError("an importance matrix has values that are negative or not finite")
        return array


def groups_shape(shape: Shape, group_size: int, scheme: str) -> Shape:
    """Return the shape of the scales of a tensor whose rows are split into groups."""
    if not shape or shape[-1] % group_size:
        raise ShapeError(
            f"a tensor of shape {shape} cannot be encoded as {scheme} in groups of {group_size}; "
            "expected rows of whole groups"
        )
    return (*shape[:-1], shape[-1] // group_size)


_installed: dict[str, Codec] = {}


@cache
def codec(name: str) -> Codec:
    """Look up a codec by name, ignoring case: built in or from an installed package.

    >>> codec("Q8_0").block_elements
    32
    """
    lowered = name.lower()
    if lowered in CODECS:
        record: Codec = load(CODECS[lowered])
        return record
    entries = installed("lbrx.codecs", CODECS)
    if lowered in _WORD_BITS:
        raise DTypeError(
            f"{lowered} tensors are codes, such as those of MLX, and have no values of their own; "
            'lbrx.convert decodes a model (type="bf16", format="safetensors")'
        )
    if lowered not in entries:
        names = (*CODECS, *entries)
        raise DTypeError(f"unknown quantization {name!r}; expected one of {', '.join(names)}{nearest(lowered, names)}")
    given = load_installed(entries[lowered])
    if not isinstance(given, Codec) or given.name != lowered:
        found = f"a codec named {given.name!r}" if isinstance(given, Codec) else f"a {type(given).__name__}"
        where = f"{package_of(entries[lowered])}: {entries[lowered].value!r}"
        raise UsageError(f"{where} is {found}; expected a Codec named {lowered!r}")
    return _installed.setdefault(lowered, given)


def is_codec(name: str) -> bool:
    """Return whether a type is a built-in codec, or one of an installed package that is in use.

    >>> is_codec("q4_k"), is_codec("f32")
    (True, False)
    """
    return name in CODECS or name in _installed


def encodable() -> list[str]:
    """Return the names of all types that lbrx can encode.

    >>> "q6_k" in encodable(), "iq2_xs" in encodable()
    (True, True)
    """
    return [name for name in CODECS if codec(name).can_encode]
