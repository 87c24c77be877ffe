"""Codes taken out of ggml's blocks, and put into them: the layouts of both sides as NumPy sees them.

Blocks are rows of bytes. Codes come out in the order of the values, one byte each; scales and biases are f32 (bytes for
float codings), one for each group. Nothing is rounded: a value is code * scale + bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.codecs.mlx import MlxMode
from lbrx.tensors.storage import Bytes

Numbers = npt.NDArray[Any]
Codes = Callable[[Bytes], Bytes]
Scales = Callable[[Bytes], tuple[Numbers, Numbers | None]]
_LOW, _FOUR, _ONE, _SIGN = (np.uint8(number) for number in (15, 4, 1, 0x80))  # constants that keep bytes bytes
_NVFP4_NOTHING = 0x7F  # encodes NaN; ggml reads it as 0
# The 16 values of IQ4_NL, plus 128.
_NONLINEAR = np.array([1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], np.uint8)


@dataclass(frozen=True, slots=True)
class LosslessCoding:
    """The coding of MLX that holds exactly the values of a type of ggml."""

    mode: MlxMode
    stream: Codes  # the codes of blocks as MLX packs them
    scales_and_biases: Scales


def halves(raw: Bytes, first: int) -> npt.NDArray[np.float32]:
    """The f16 number at a byte of every block, as a column of f32."""
    return np.ascontiguousarray(raw[:, first : first + 2]).view("<f2").astype(np.float32)


def nibbles(raw: Bytes, run: int) -> Bytes:
    """Codes of four bits: bytes come in runs whose low halves precede their high halves.

    >>> raw = np.array([[0x21, 0x43]], np.uint8)
    >>> nibbles(raw, run=2).tolist(), nibbles(raw, run=1).tolist()
    ([[1, 3, 2, 4]], [[1, 2, 3, 4]])
    """
    bytes_in_runs = raw.reshape(len(raw), -1, 1, run)
    return np.concatenate([bytes_in_runs & _LOW, bytes_in_runs >> _FOUR], axis=2).reshape(len(raw), -1)


def pack_nibbles(codes: Bytes, run: int) -> Bytes:
    """The inverse of ``nibbles``."""
    pairs = codes.reshape(len(codes), -1, 2, run)
    return (pairs[:, :, 0] | (pairs[:, :, 1] << _FOUR)).reshape(len(codes), -1)


def pack_bits(codes: Bytes, bits: int) -> Bytes:
    """One stream of codes per row, lowest bits first, as MLX has them.

    >>> pack_bits(np.array([[1, 2, 3, 4, 5, 6, 7, 8]], np.uint8), 4).tolist()
    [[33, 67, 101, 135]]
    """
    if bits == 8:
        return codes
    if bits == 4:
        return pack_nibbles(codes, 1)
    eights = codes.reshape(-1, 8).astype(np.uint64) << np.arange(0, 8 * bits, bits, dtype=np.uint64)
    words: Bytes = np.bitwise_or.reduce(eights, axis=1).astype("<u8").view(np.uint8)
    return words.reshape(-1, 8)[:, :bits].reshape(len(codes), -1)


def unpack_bits(stream: Bytes, bits: int) -> Bytes:
    """The inverse of ``pack_bits``.

    >>> unpack_bits(np.array([[209, 88, 31]], np.uint8), 3).tolist()
    [[1, 2, 3, 4, 5, 6, 7, 0]]
    """
    if bits == 8:
        return stream
    if bits == 4:
        return nibbles(stream, 1)
    words = np.zeros((stream.size // bits, 8), np.uint8)
    words[:, :bits] = stream.reshape(-1, bits)
    shifted = words.view("<u8") >> np.arange(0, 8 * bits, bits, dtype=np.uint64)
    return (shifted & np.uint64((1 << bits) - 1)).astype(np.uint8).reshape(len(stream), -1)


def fifth_bits(raw: Bytes) -> Bytes:
    """32 bits of every block as a code of 16 each, to be added."""
    return np.unpackbits(raw, axis=1, bitorder="little") << _FOUR


def paired_nibbles(raw: Bytes, run: int) -> Bytes:
    """``pack_bits(nibbles(raw, run), 4)`` in one go, two bytes at a time.

    >>> paired_nibbles(np.array([[0x21, 0x43]], np.uint8), run=2).tolist()
    [[49, 66]]
    """
    words = np.ascontiguousarray(raw).view("<u2").reshape(len(raw), -1, run // 2)
    low = (words & 0x0F) | ((words >> 4) & 0xF0)
    high = ((words >> 4) & 0x0F) | ((words >> 8) & 0xF0)
    return np.stack([low, high], axis=2).astype(np.uint8).reshape(len(raw), -1)


def _nibbles_after(scales_bytes: int, run: int = 16) -> Codes:
    def codes(raw: Bytes) -> Bytes:
        return paired_nibbles(raw[:, scales_bytes:], run)

    return codes


def _centred(zero_code: int) -> Scales:
    """One f16 scale; ``zero_code`` encodes 0."""

    def numbers(raw: Bytes) -> tuple[Numbers, Numbers]:
        scale = halves(raw, 0)
        return scale, -zero_code * scale

    return numbers


def _scale_and_bias(raw: Bytes) -> tuple[Numbers, Numbers]:
    return halves(raw, 0), halves(raw, 2)


def _six_bit_pairs(raw: Bytes) -> tuple[Numbers, Numbers]:
    """Scales and biases of the eight groups of Q4_K and Q5_K, from the first 16 bytes."""
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1).astype(np.float32)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1).astype(np.float32)
    return scales * halves(raw, 0), -(minimums * halves(raw, 2))


def _q5_codes(fifth_bits_at: int) -> Codes:
    def stream(raw: Bytes) -> Bytes:
        high = fifth_bits(raw[:, fifth_bits_at : fifth_bits_at + 4])
        return pack_bits(nibbles(raw[:, fifth_bits_at + 4 :], 16) | high, 5)

    return stream


def _q5_k_codes(raw: Bytes) -> Bytes:
    groups = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = ((raw[:, None, 16:48] >> groups) & _ONE) << _FOUR
    return pack_bits(nibbles(raw[:, 48:], 32) | high.reshape(len(raw), -1), 5)


def _q8_codes(raw: Bytes) -> Bytes:
    return raw[:, 2:] ^ _SIGN


def _iq4_nl_codes(raw: Bytes) -> Bytes:
    return _NONLINEAR[nibbles(raw[:, 2:], 16)]


def _mxfp4_scales(raw: Bytes) -> tuple[Numbers, None]:
    return raw[:, :1], None


def _nvfp4_scales(raw: Bytes) -> tuple[Numbers, None]:
    scales = raw[:, :4] & 0x7F
    return np.where(scales == _NVFP4_NOTHING, np.uint8(0), scales), None


_AFFINE_4, _AFFINE_5, _AFFINE_8 = (MlxMode("affine", bits, 32) for bits in (4, 5, 8))
LOSSLESS: dict[str, LosslessCoding] = {
    "q4_0": LosslessCoding(_AFFINE_4, _nibbles_after(2), _centred(8)),
    "q4_1": LosslessCoding(_AFFINE_4, _nibbles_after(4), _scale_and_bias),
    "q5_0": LosslessCoding(_AFFINE_5, _q5_codes(2), _centred(16)),
    "q5_1": LosslessCoding(_AFFINE_5, _q5_codes(4), _scale_and_bias),
    "q8_0": LosslessCoding(_AFFINE_8, _q8_codes, _centred(128)),
    "q4_k": LosslessCoding(_AFFINE_4, _nibbles_after(16, run=32), _six_bit_pairs),
    "q5_k": LosslessCoding(_AFFINE_5, _q5_k_codes, _six_bit_pairs),
    "iq4_nl": LosslessCoding(_AFFINE_8, _iq4_nl_codes, _centred(128)),
    "mxfp4": LosslessCoding(MlxMode("mxfp4", 4, 32), _nibbles_after(1), _mxfp4_scales),
    "nvfp4": LosslessCoding(MlxMode("nvfp4", 4, 16), _nibbles_after(4, run=8), _nvfp4_scales),
}
"""By the name of the type of ggml."""


# -- into blocks: codes, scales and biases of groups as they are in one block, which rows stand for --------------------


def _f16(numbers: Numbers) -> Bytes:
    return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8).reshape(len(numbers), -1)


def _high_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _to_q4_0(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    del biases  # are -8 scales
    return np.concatenate([_f16(scales), pack_nibbles(codes, 16)], axis=1)


def _to_q4_1(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    return np.concatenate([_f16(scales), _f16(biases), pack_nibbles(codes, 16)], axis=1)


def _to_q5_0(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    del biases  # are -16 scales
    return np.concatenate([_f16(scales), _high_bits(codes), pack_nibbles(codes & _LOW, 16)], axis=1)


def _to_q5_1(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    return np.concatenate([_f16(scales), _f16(biases), _high_bits(codes), pack_nibbles(codes & _LOW, 16)], axis=1)


def _to_q8_0(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    del biases  # are -128 scales
    return np.concatenate([_f16(scales), codes ^ _SIGN], axis=1)


def _to_mxfp4(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    del biases
    return np.concatenate([scales, pack_nibbles(codes, 16)], axis=1)


def _to_nvfp4(codes: Bytes, scales: Numbers, biases: Numbers) -> Bytes:
    del biases
    return np.concatenate([scales, pack_nibbles(codes, 8)], axis=1)


PACKERS: dict[str, Callable[[Bytes, Numbers, Numbers], Bytes]] = {
    "q4_0": _to_q4_0,
    "q4_1": _to_q4_1,
    "q5_0": _to_q5_0,
    "q5_1": _to_q5_1,
    "q8_0": _to_q8_0,
    "mxfp4": _to_mxfp4,
    "nvfp4": _to_nvfp4,
}
