"""Values encoded in groups whose codes, scales and offsets are tensors of their own: integers, and MLX's modes."""

from __future__ import annotations

from lbrx.engine.encode import EncodedStorage
from lbrx.engine.encode_parts import JointCoding, JointValues, PartStorage
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs.groups import groups_shape, part
from lbrx.tensors.codecs.integers import IntegerCoding, integer_bits, join_integers
from lbrx.tensors.codecs.mlx import AFFINE, WORD_BITS, MlxMode, MlxWeight
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.tensor import Tensor

_DTYPE_NUMBERS = {"f32": 0, "f16": 1, "bf16": 2}


def encoded_integers(values: Expr, scheme: str, group_size: int, symmetric: bool) -> IntegerCoding:
    """An expression encoded as integers; nothing is computed until the parts are read or written."""
    bits = integer_bits(scheme)
    if group_size < 8 or group_size % 8:
        raise UsageError(f"a group size of {group_size} is not possible; expected a multiple of 8")
    shape = groups_shape(values.shape, group_size, scheme)
    symmetry = "symmetric" if symmetric else "asymmetric"
    codes = part(scheme, group_size, group_size * bits // 8, f"{symmetry}_codes", group_size, bits)
    scales = part("f32", group_size, 4, f"{symmetry}_scales", group_size, bits)
    zero_points = part("i8", group_size, 1, "asymmetric_zero_points", group_size, bits)
    return join_integers(
        scheme,
        values.shape,
        EncodedStorage(values, codes),
        Source(EncodedStorage(values, scales), DTYPES["f32"], Layout.contiguous(shape)),
        None if symmetric else Source(EncodedStorage(values, zero_points), DTYPES["i8"], Layout.contiguous(shape)),
    )


def encoded_mlx(values: Tensor, mode: MlxMode | None = None) -> MlxWeight:
    """Code a tensor as MLX does; nothing is computed until the parts are read or written.

    >>> import lbrx, numpy as np
    >>> from lbrx.tensors.codecs.mlx import dequantize
    >>> coded = encoded_mlx(lbrx.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)), MlxMode(bits=8))
    >>> coded.weight.shape, coded.scales.shape
    ((2, 32), (2, 2))
    >>> bool(abs(dequantize(coded.weight, coded.scales, coded.biases, MlxMode(bits=8))[1, -1] - 1) < 0.01)
    True
    """
    coding = mode or MlxMode()
    shape = groups_shape(values.shape, coding.group_size, f"MLX {coding.mode}")
    bits = values.shape[-1] * coding.bits
    if bits % WORD_BITS:
        raise ShapeError(
            f"rows of {values.shape[-1]} codes of {coding.bits} bits are no whole number of {WORD_BITS}-bit words"
        )
    word_shape = (*values.shape[:-1], bits // WORD_BITS)
    storages, numbers = _coded(values, coding)
    weight = Tensor(Blocks(storages[0], "u32", word_shape))
    scales, *biases = (Tensor(Source(storage, numbers, Layout.contiguous(shape))) for storage in storages[1:])
    return MlxWeight(weight, scales, biases[0] if biases else None)


def _coded(values: Tensor, mode: MlxMode) -> tuple[list[EncodedStorage], DType]:
    """The storages of weight, scales and biases, and the dtype of the latter two."""
    size, bits = mode.group_size, mode.bits
    if mode.mode != "affine":
        part_codecs = [
            part("u32", size, mode.group_bytes, f"{mode.mode}_codes"),
            part("u8", size, 1, f"{mode.mode}_scales"),
        ]
        return [EncodedStorage(values.expr, part_codec) for part_codec in part_codecs], DTYPES["u8"]
    numbers = DTYPES[values.dtype.name if values.dtype.name in _DTYPE_NUMBERS else "f32"]
    joint = JointValues(
        values.expr,
        JointCoding(
            size,
            (mode.group_bytes, numbers.itemsize, numbers.itemsize),
            AFFINE,
            "encode_parts",
            (size, bits, _DTYPE_NUMBERS[numbers.name]),
        ),
    )
    return [PartStorage(joint, number) for number in range(3)], numbers
