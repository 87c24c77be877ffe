"""The record of a quantization type, and the lookup by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, ShapeError, UsageError, nearest
from lbrx.registry import CODECS, installed, load, load_installed, package_of
from lbrx.tensors.functions import function


@dataclass(frozen=True, slots=True)
class Codec:
    """A type that codes blocks of so many values in so many bytes, each block by itself.

    ``kernels`` is the path of a module, such as ``package.module``, or the name of one in
    ``lbrx.devices.cpu.kernels.codecs``, with functions over addresses of f32 values and of blocks:
    ``decode(blocks, values, count)``, ``encode(values, blocks, count)`` and, where an importance matrix can be
    taken, ``encode_weighted(values, blocks, rows, blocks_per_row, weights)``. After the count, a decoder gets the
    addresses of the ``numbers`` of the blocks as f32, its parameters, and the table that ``codebook`` gives.

    >>> codec("Q4_K").block_bytes, codec("q4_k").bits
    (144, 4.5)
    """

    name: str
    block_elements: int
    block_bytes: int
    kernels: str
    can_encode: bool = True
    takes_imatrix: bool = False
    weighs_whole_rows: bool = False  # with an importance matrix, the coding of a block depends on its whole row
    codebook: Callable[[], npt.NDArray[Any]] | None = None
    encoder: str = "encode"  # the function of the module that codes without an importance matrix
    parameters: tuple[int, ...] = ()  # what it is given besides
    decoder: str = "decode"
    decoder_parameters: tuple[int, ...] = ()
    numbers: tuple[npt.DTypeLike, ...] = ()  # types of what is stored apart for each block: a scale, then an offset

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this shape, whose rows (along the last axis) have to be whole blocks."""
        if not shape or shape[-1] % self.block_elements:
            row = f"rows of {shape[-1]} elements" if shape else "no axes"
            raise ShapeError(
                f"a tensor of shape {tuple(shape)} has {row}; "
                f"expected a multiple of {self.block_elements} for {self.name}"
            )
        return int(np.prod(shape, dtype=np.int64)) // self.block_elements * self.block_bytes

    def encode(self, values: int, blocks: int, count: int) -> None:
        """Code ``count`` blocks from f32 values at one address to another."""
        self._check_can_encode()
        arguments = (values, blocks, count, *self.parameters)
        kernel(self.kernels, self.encoder, len(arguments))(*arguments)

    def encoder_address(self) -> int:
        """The address of the compiled ``encode`` of a type without parameters, for other compiled code to call."""
        self._check_can_encode()
        return kernel_address(self.kernels, self.encoder, 3)

    def encode_weighted(self, values: int, blocks: int, rows: int, blocks_per_row: int, weights: int) -> None:
        """Code rows of blocks where ``weights`` is the address of an f32 for every column of a row."""
        self._check_can_encode()
        if not self.takes_imatrix:
            raise UsageError(f"{self.name} takes no importance matrix")
        kernel(self.kernels, "encode_weighted", 5)(values, blocks, rows, blocks_per_row, weights)

    def _check_can_encode(self) -> None:
        if not self.can_encode:
            raise UsageError(f"{self.name} can be read but not made; expected one of {', '.join(encodable())}")


def kernel(module: str, name: str, arguments: int) -> Callable[..., None]:
    """A compiled function of a module of codec kernels, over addresses and numbers."""
    compiled: Callable[..., None] = function("kernel")(_module(module), name, arguments)
    return compiled


def kernel_address(module: str, name: str, arguments: int) -> int:
    """The address of such a function, for other compiled code to call."""
    address: int = function("kernel_address")(_module(module), name, arguments)
    return address


def _module(name: str) -> str:
    return name if "." in name else f"codecs.{name}"


_installed: dict[str, Codec] = {}


@cache
def codec(name: str) -> Codec:
    """The type of a name, in capitals or not: built in or of an installed package.

    >>> codec("Q8_0").block_elements
    32
    """
    lowered = name.lower()
    if lowered in CODECS:
        record: Codec = load(CODECS[lowered])
        return record
    entries = installed("lbrx.codecs", CODECS)
    if lowered not in entries:
        names = (*CODECS, *entries)
        raise DTypeError(
            f"{name!r} is not a known quantization; expected one of {', '.join(names)}{nearest(lowered, names)}"
        )
    given = load_installed(entries[lowered])
    if not isinstance(given, Codec) or given.name != lowered:
        found = f"a codec named {given.name!r}" if isinstance(given, Codec) else f"a {type(given).__name__}"
        where = f"{package_of(entries[lowered])}: {entries[lowered].value!r}"
        raise UsageError(f"{where} is {found}; expected a Codec named {lowered!r}")
    return _installed.setdefault(lowered, given)


def is_codec(name: str) -> bool:
    """Whether a type is a built-in codec, or one of an installed package that is in use.

    >>> is_codec("q4_k"), is_codec("f32")
    (True, False)
    """
    return name in CODECS or name in _installed


def encodable() -> list[str]:
    """The names of all types that values can be coded in.

    >>> "q6_k" in encodable(), "iq2_xs" in encodable()
    (True, False)
    """
    return [name for name in CODECS if codec(name).can_encode]
