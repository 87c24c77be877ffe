"""The ggml tensor types, in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, ShapeError, nearest
from lbrx.files.formats.header import MAX_INT64, element_count
from lbrx.tensors.dtype import BY_GGUF, DType

MAX_GGUF_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgmlType:
    """How ggml stores the rows of a tensor: elements per block and bytes per block.

    >>> row = GGML_TYPES["q4_k"]
    >>> row.id, row.block_elements, row.block_bytes, row.nbytes((3, 512))
    (12, 256, 144, 864)
    """

    id: int
    name: str
    block_elements: int
    block_bytes: int
    dtype: DType | None  # None for block quantization

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a tensor of this (row-major) shape; raise ShapeError if ggml cannot store it."""
        if len(shape) > MAX_GGUF_DIMENSIONS:
            raise ShapeError(f"has {len(shape)} dimensions, expected at most {MAX_GGUF_DIMENSIONS}")
        row_elements = shape[-1] if shape else 1
        if row_elements % self.block_elements:
            raise ShapeError(
                f"has rows of {row_elements} elements, expected a multiple of {self.block_elements} for {self.name}"
            )
        nbytes = element_count(shape) // self.block_elements * self.block_bytes
        if nbytes > MAX_INT64:
            raise ShapeError(f"takes {nbytes} bytes as {self.name}, expected at most 2^63 - 1")
        return nbytes


def _row(type_id: int, name: str, block_elements: int, block_bytes: int) -> GgmlType:
    return GgmlType(type_id, name, block_elements, block_bytes, BY_GGUF.get(type_id))


_ROWS = (
    _row(0, "f32", 1, 4),
    _row(1, "f16", 1, 2),
    _row(2, "q4_0", 32, 18),
    _row(3, "q4_1", 32, 20),
    _row(6, "q5_0", 32, 22),
    _row(7, "q5_1", 32, 24),
    _row(8, "q8_0", 32, 34),
    _row(9, "q8_1", 32, 36),
    _row(10, "q2_k", 256, 84),
    _row(11, "q3_k", 256, 110),
    _row(12, "q4_k", 256, 144),
    _row(13, "q5_k", 256, 176),
    _row(14, "q6_k", 256, 210),
    _row(15, "q8_k", 256, 292),
    _row(16, "iq2_xxs", 256, 66),
    _row(17, "iq2_xs", 256, 74),
    _row(18, "iq3_xxs", 256, 98),
    _row(19, "iq1_s", 256, 50),
    _row(20, "iq4_nl", 32, 18),
    _row(21, "iq3_s", 256, 110),
    _row(22, "iq2_s", 256, 82),
    _row(23, "iq4_xs", 256, 136),
    _row(24, "i8", 1, 1),
    _row(25, "i16", 1, 2),
    _row(26, "i32", 1, 4),
    _row(27, "i64", 1, 8),
    _row(28, "f64", 1, 8),
    _row(29, "iq1_m", 256, 56),
    _row(30, "bf16", 1, 2),
    _row(34, "tq1_0", 256, 54),
    _row(35, "tq2_0", 256, 66),
    _row(39, "mxfp4", 32, 17),
    _row(40, "nvfp4", 64, 36),
    _row(41, "q1_0", 128, 18),
    _row(42, "q2_0", 64, 18),
)

GGML_TYPES: dict[str, GgmlType] = {row.name: row for row in _ROWS}
BY_ID: dict[int, GgmlType] = {row.id: row for row in _ROWS}
REMOVED_TYPES: dict[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


def ggml_type(name: str) -> GgmlType:
    """Return the type with this lower-case name.

    >>> ggml_type("mxfp4").block_bytes
    17
    """
    if name in GGML_TYPES:
        return GGML_TYPES[name]
    raise DTypeError(
        f"{name!r} is not a GGUF tensor type; expected one of {', '.join(GGML_TYPES)}{nearest(name, GGML_TYPES)}"
    )
