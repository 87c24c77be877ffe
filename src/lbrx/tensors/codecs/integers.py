"""Integers of 8, 4 or 2 bits in groups, with separate scales and zero points: x = (code - zero point) scale.

Codes are signed. Symmetric encoding has no zero points and uses the same range of codes below and above 0. Asymmetric
encoding uses all codes for a range that always contains 0.
"""

from __future__ import annotations

from lbrx.errors import UsageError, nearest
from lbrx.tensors.codecs.codec import Codec, Part, groups_shape
from lbrx.tensors.coded import DEFAULT_GROUP_SIZE, SCHEMES, Blocks, Encode, Encoding
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Storage


def join_integers(scheme: str, shape: Shape, codes: Storage, scales: Source, zero_points: Source | None) -> Blocks:
    """Combine codes, scales and zero points into one quantized tensor."""
    group_size = shape[-1] // scales.shape[-1] if scales.shape[-1] else DEFAULT_GROUP_SIZE  # any size if empty
    coding = integer_codec(scheme, group_size, symmetric=zero_points is None)
    return Blocks(codes, scheme, shape, coding, (scales, zero_points))


def encoded_integers(values: Expr, scheme: str, group_size: int, symmetric: bool) -> Encode:
    """Encode an expression as integers."""
    if group_size < 8 or group_size % 8:
        raise UsageError(f"the group size is {group_size}; expected a multiple of 8")
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
            f"unknown integer encoding {scheme!r}; expected one of {', '.join(SCHEMES)}{nearest(scheme, SCHEMES)}"
        )
    return SCHEMES[scheme]
