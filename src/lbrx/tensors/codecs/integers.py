"""Integers of 8, 4 or 2 bits in groups, with scales and zero points kept apart: x = (code - zero point) scale.

Codes are signed. Symmetric coding has no zero points, and its codes reach as far down as up; asymmetric coding uses
all codes for a range that always has 0 in it.
"""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.codecs.groups import MODULE
from lbrx.tensors.coded import Blocks
from lbrx.tensors.expr import Source
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
    coding = integer_codec(scheme, shape[-1] // scales.shape[-1])
    return IntegerCoding(Blocks(codes, scheme, shape, coding, (scales, zero_points)), scales, zero_points)


def integer_codec(scheme: str, group_size: int) -> Codec:
    bits = integer_bits(scheme)
    return Codec(
        scheme,
        group_size,
        group_size * bits // 8,
        MODULE,
        decoder="decode_integers",
        decoder_parameters=(group_size, bits),
        numbers=("f4", "i1"),
    )


def integer_bits(scheme: str) -> int:
    if scheme not in SCHEMES:
        raise UsageError(
            f"{scheme!r} is not an integer coding; expected one of {', '.join(SCHEMES)}{nearest(scheme, SCHEMES)}"
        )
    return SCHEMES[scheme]
