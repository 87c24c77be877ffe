"""Codes taken out of ggml's blocks, and put into them: the layouts of both sides as NumPy sees them.

``unpack`` functions take blocks as rows of bytes and give the codes in the order of the values, one byte each, and the
f32 scales and biases of groups (bytes of scales for float codings). Nothing is rounded: a value is code * scale + bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.quants.mlx import MlxMode
from lbrx.storage import Bytes

Numbers = npt.NDArray[Any]
Unpacked = tuple[Bytes, Numbers, Numbers | None]
_LOW, _FOUR, _ONE, _SIGN = (np.uint8(number) for number in (15, 4, 1, 0x80))  # constants that keep bytes bytes
_NVFP4_NOTHING = 0x7F  # stands for no number; ggml reads it as 0
# The 16 values of IQ4_NL, plus 128.
_NONLINEAR = np.array([1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], np.uint8)


@dataclass(frozen=True, slots=True)
class LosslessCoding:
    """The coding of MLX that holds exactly the values of a type of ggml."""

    mode: MlxMode
    unpack: Callable[[Bytes], Unpacked]


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


def _q4_0(raw: Bytes) -> Unpacked:
    scale = halves(raw, 0)
    return nibbles(raw[:, 2:], 16), scale, -8 * scale


def _q4_1(raw: Bytes) -> Unpacked:
    return nibbles(raw[:, 4:], 16), halves(raw, 0), halves(raw, 2)


def _q5_0(raw: Bytes) -> Unpacked:
    scale = halves(raw, 0)
    return nibbles(raw[:, 6:], 16) | fifth_bits(raw[:, 2:6]), scale, -16 * scale


def _q5_1(raw: Bytes) -> Unpacked:
    return nibbles(raw[:, 8:], 16) | fifth_bits(raw[:, 4:8]), halves(raw, 0), halves(raw, 2)


def _q8_0(raw: Bytes) -> Unpacked:
    scale = halves(raw, 0)
    return raw[:, 2:] ^ _SIGN, scale, -128 * scale


def _six_bit_pairs(raw: Bytes) -> tuple[Numbers, Numbers]:
    """Scales and biases of the eight groups of Q4_K and Q5_K, from the first 16 bytes."""
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1).astype(np.float32)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1).astype(np.float32)
    return scales * halves(raw, 0), -(minimums * halves(raw, 2))


def _q4_k(raw: Bytes) -> Unpacked:
    return nibbles(raw[:, 16:], 32), *_six_bit_pairs(raw)


def _q5_k(raw: Bytes) -> Unpacked:
    groups = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = ((raw[:, None, 16:48] >> groups) & _ONE) << _FOUR
    return nibbles(raw[:, 48:], 32) | high.reshape(len(raw), -1), *_six_bit_pairs(raw)


def _iq4_nl(raw: Bytes) -> Unpacked:
    scale = halves(raw, 0)
    return _NONLINEAR[nibbles(raw[:, 2:], 16)], scale, -128 * scale


def _mxfp4(raw: Bytes) -> Unpacked:
    return nibbles(raw[:, 1:], 16), raw[:, :1], None


def _nvfp4(raw: Bytes) -> Unpacked:
    scales = raw[:, :4] & 0x7F
    return nibbles(raw[:, 4:], 8), np.where(scales == _NVFP4_NOTHING, np.uint8(0), scales), None


LOSSLESS: dict[str, LosslessCoding] = {
    "q4_0": LosslessCoding(MlxMode("affine", 4, 32), _q4_0),
    "q4_1": LosslessCoding(MlxMode("affine", 4, 32), _q4_1),
    "q5_0": LosslessCoding(MlxMode("affine", 5, 32), _q5_0),
    "q5_1": LosslessCoding(MlxMode("affine", 5, 32), _q5_1),
    "q8_0": LosslessCoding(MlxMode("affine", 8, 32), _q8_0),
    "q4_k": LosslessCoding(MlxMode("affine", 4, 32), _q4_k),
    "q5_k": LosslessCoding(MlxMode("affine", 5, 32), _q5_k),
    "iq4_nl": LosslessCoding(MlxMode("affine", 8, 32), _iq4_nl),
    "mxfp4": LosslessCoding(MlxMode("mxfp4", 4, 32), _mxfp4),
    "nvfp4": LosslessCoding(MlxMode("nvfp4", 4, 16), _nvfp4),
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
