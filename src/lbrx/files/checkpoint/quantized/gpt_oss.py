"""MXFP4 of gpt-oss: blocks of 32 floats of 4 bits and exponents, for the experts of a layer at once.

The blocks of an expert have its outputs as rows; the weight of transformers has its inputs as rows.
"""

from __future__ import annotations

from lbrx.files.checkpoint.quantized.parts import EXPONENTS, Parts
from lbrx.tensors.codecs.packed import E2M1, Packing, spread, unpacked
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Expr, apply, cast

GROUP, GROUP_BYTES = 32, 16


def decode(name: str, parts: Parts) -> Expr:
    """Return the weight of all experts: code times power of two in bf16."""
    blocks = parts.part(name, name, ("u8",))
    if len(blocks.shape) != 4 or blocks.shape[-1] != GROUP_BYTES:
        raise parts.error(name, f"has shape {blocks.shape}, expected experts, outputs, groups and {GROUP_BYTES} bytes")
    experts, outputs, groups, _ = blocks.shape
    scales_name = f"{name.removesuffix('_blocks')}_scales"
    scales = parts.part(name, scales_name, ("u8", EXPONENTS), (experts, outputs, groups))
    shape = (experts, groups * GROUP, outputs)
    values = unpacked(blocks, shape, Packing(4, line_step=groups * GROUP_BYTES, is_across=True), E2M1)
    exponents = spread(scales, shape, block=(GROUP, 1), is_across=True, number_type=EXPONENTS)
    return cast(apply("mul", values, exponents), DTYPES["bf16"])
