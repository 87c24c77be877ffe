"""Which function multiplies vectors with a weight by the codes that it is stored as: one entry for each codec.

An entry is a function of the vectors [n, k], the expression of the weight [m, k], the result [n, m], and the number of
bits that vectors may be coded in: 16 or 8. It returns False, and the result then means nothing, if it cannot multiply
them: an activation is not finite, or the weight is a view that it does not support. The caller then decodes the weight
to f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lbrx.devices.cpu.build.native import MULTIPLIES_PAIRS
from lbrx.devices.cpu.ops import gemv_groups, gemv_quantized
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.devices.cpu.ops.gemm_groups import gemm_groups
from lbrx.devices.cpu.ops.gemm_i16 import gemm_i16
from lbrx.devices.cpu.ops.row_jobs import CodedJob
from lbrx.engine.arrays import Floats
from lbrx.tensors.coded import Blocks, Decode
from lbrx.tensors.expr import Expr

CodedProduct = Callable[[Floats, Any, Floats, int], bool]

SEPARATE_SCALES = ("mlx_affine", "int8", "int4", "int2", "mlx_mxfp4", "mlx_nvfp4", "mlx_mxfp8")
FEW_VECTORS: dict[str, CodedProduct] = {
    **dict.fromkeys(CODED_GROUPS, gemv_quantized.gemv_quantized),
    **dict.fromkeys(SEPARATE_SCALES, gemv_groups.gemv_groups),
}
CODED_JOBS: dict[str, Callable[[Any, int, int, int], CodedJob | None]] = {
    **dict.fromkeys(CODED_GROUPS, gemv_quantized.coded_job),
    **dict.fromkeys(SEPARATE_SCALES, gemv_groups.coded_job),
}
MANY_VECTORS: dict[str, CodedProduct] = {
    **dict.fromkeys(CODED_GROUPS, gemm_i16),
    **dict.fromkeys(SEPARATE_SCALES, gemm_groups),
}


def of_few_vectors(weight: Expr) -> CodedProduct | None:
    """The product of up to four vectors with a weight, or None if it has to be decoded."""
    return FEW_VECTORS.get(_codec_name(weight))


def job_of_few_vectors(weight: Expr, vectors: int, rows: int, bits: int) -> CodedJob | None:
    """The product of up to four vectors with a weight as a job that can be run later, or None if there is no such job.

    Its results have the bits of `of_few_vectors`.
    """
    make = CODED_JOBS.get(_codec_name(weight))
    return None if make is None else make(weight, vectors, rows, bits)


def of_many_vectors(weight: Expr) -> CodedProduct | None:
    """The product of more vectors, or None if decoding the weight for BLAS is faster on this processor."""
    return MANY_VECTORS.get(_codec_name(weight)) if MULTIPLIES_PAIRS else None


def _codec_name(weight: Expr) -> str:
    if type(weight) is Blocks:
        return weight.codec
    return weight.codec.name if type(weight) is Decode else ""
