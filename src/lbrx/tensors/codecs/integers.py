"""Integers of 8, 4 or 2 bits in groups, with scales and zero points kept apart: x = (code - zero point) scale.

Codes are signed. Symmetric coding has no zero points, and its codes reach as far down as up; asymmetric coding uses
all codes for a range that always has 0 in it.
"""

from __future__ import annotations

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.tensors.codecs.groups import Floats, decoded_groups, numbers_from
from lbrx.tensors.expr import Blocks, Source
from lbrx.tensors.quantization_info import SCHEMES
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Storage


@dataclass(frozen=True, slots=True)
class IntegerCoding:
    """The parts of a tensor coded as integers; ``blocks`` are the codes, which also know their values."""

    blocks: Blocks
    scales: Source
    zero_points: Source | None

    @property
    def group_size(self) -> int:
        return self.blocks.shape[-1] // self.scales.shape[-1]

    @property
    def bits_per_value(self) -> float:
        """Scales and zero points included."""
        extra = 32 + (8 if self.zero_points is not None else 0)
        return SCHEMES[self.blocks.codec] + extra / self.group_size


def join_integers(
    scheme: str, shape: Shape, codes: Storage, scales: Source, zero_points: Source | None
) -> IntegerCoding:
    """The coding whose parts these are."""
    bits = integer_bits(scheme)
    group_size = shape[-1] // scales.shape[-1]
    read_zero_points = _zeros if zero_points is None else numbers_from(zero_points.storage, np.int8)
    decoded = decoded_groups(
        codes,
        bits,
        group_size,
        "decode_integers",
        (numbers_from(scales.storage, scales.dtype.numpy), read_zero_points),
        (group_size, bits),
    )
    return IntegerCoding(Blocks(codes, scheme, shape, decoded), scales, zero_points)


def _zeros(_first: int, count: int) -> Floats:
    return np.zeros(count, np.float32)


def integer_bits(scheme: str) -> int:
    if scheme not in SCHEMES:
        raise UsageError(
            f"{scheme!r} is not an integer coding; expected one of {', '.join(SCHEMES)}{nearest(scheme, SCHEMES)}"
        )
    return SCHEMES[scheme]
