"""BitNet: -1, 0 and 1 in 2 bits, four rows in a byte, with one scale for the weight.

Activations, which BitNet rounds to 8 bits while it runs, are not rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.files.checkpoint.quantized.parts import HALVES, Parts
from lbrx.tensors.codecs.packed import integers, unpacked_lanes
from lbrx.tensors.expr import Expr, apply
from lbrx.tensors.views import broadcast, reshaped

ROWS_IN_BYTE = 4


def unknown(settings: Mapping[str, Any]) -> str | None:
    """Return what of the settings lbrx cannot decode."""
    name = settings.get("linear_class", "bitlinear")
    return None if name in ("bitlinear", "autobitlinear") else f"linear_class {str(name)[:40]!r}"


def decode(name: str, parts: Parts) -> Expr:
    """Return the values in f32: code times scale for AutoBitLinear, code divided by scale for BitLinear."""
    codes = parts.part(name, name, ("u8",))
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise parts.error(name, f"has shape {codes.shape}, expected a matrix")
    scales = parts.part(name, f"{name}_scale", ("f32", *HALVES))
    if scales.shape not in ((), (1,)):
        raise parts.error(f"{name}_scale", f"has shape {scales.shape}, expected one number")
    shape = (ROWS_IN_BYTE * codes.shape[0], codes.shape[1])
    op = "mul" if parts.settings.get("linear_class") == "autobitlinear" else "div"
    return apply(op, unpacked_lanes(codes, shape, 2, integers(2, -1)), broadcast(reshaped(scales, (1, 1)), shape))
