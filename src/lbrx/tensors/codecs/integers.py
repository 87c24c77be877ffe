"""Integers of 8, 4 or 2 bits in groups, with scales and zero points kept apart: x = (code - zero point) scale.

Codes are signed. Symmetric coding has no zero points, and its codes reach as far down as up; asymmetric coding uses
all codes for a range that always has 0 in it.
"""

from __future__ import annotations

from lbrx.errors import UsageError, nearest
from lbrx.tensors.codecs.codec import Codec, Part, groups_shape
from lbrx.tensors.coded import DEFAULT_GROUP_SIZE, SCHEMES, Blocks, Encode, Encoding
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Storage


def join_integers(scheme: str, shape: Shape, codes: Storage, scales: Source, zero_points: Source | None) -> Blocks:
    """The coding whose parts these are."""
    group_size = shape[-1] // scales.shape[-1] if scales.shape[-1] else DEFAULT_GROUP_SIZE  # of no elements: any
    coding = integer_codec(scheme, group_size, symmetric=zero_points is None)
    return Blocks(codes, scheme, shape, coding, (scales, zero_points))


def encoded_integers(values: Expr, scheme: str, group_size: int, symmetric: bool) -> Encode:
    """An expression encoded as integers."""
    if group_size < 8 or group_size % 8:
        raise UsageError(f"a group size of {group_size} is not possible; expected a multiple of 8")
    groups_shape(values.shape, group_size, scheme)
    return Encode(Encoding(values, integer_codec(scheme, group_size, symmetric)))


def integer_codec(scheme: str, group_size: int, symmetric: bool) -> Codec:
    bits = integer_bits(scheme)
    symmetry = "symmetric" if symmetric else "asymmetric"
    codes = Part(f"i{bits}", group_size * bits // 8, f"{symmetry}_codes")
    scales, zero_points = Part("f32", 4, f"{symmetry}_scales"), Part("i8", 1, "asymmetric_zero_points")
    return Codec(
        scheme,
        group_size,
        codes.block_bytes,
        "groups",
        parameters=(group_size, bits),
        decoder="decode_integers",
        decoder_parameters=(group_size, bits),
        numbers=("f4", "i1"),
        parts=(codes, scales) if symmetric else (codes, scales, zero_points),
    )


def integer_bits(scheme: str) -> int:
    if scheme not in SCHEMES:
        raise UsageError(
            f"{scheme!r} is not an integer coding; expected one of {', '.join(SCHEMES)}{nearest(scheme, SCHEMES)}"
        )
    return SCHEMES[scheme]
