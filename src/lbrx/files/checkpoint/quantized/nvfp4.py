"""ModelOpt: NVFP4 (floats of 4 bits, E4M3 scales of 16 and a scale of the weight), and FP8 with one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbrx.files.checkpoint.quantized import fp8
from lbrx.files.checkpoint.quantized.parts import Parts
from lbrx.tensors.codecs.packed import E2M1, Packing, spread, unpacked
from lbrx.tensors.expr import Expr, apply
from lbrx.tensors.views import broadcast, reshaped

GROUP = 16
ALGORITHMS = ("FP8", "NVFP4", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MIXED_PRECISION", "W4A16_NVFP4")


def unknown(settings: Mapping[str, Any]) -> str | None:
    """Return what of the settings lbrx cannot decode."""
    algorithm = settings.get("quant_algo")
    is_known = algorithm is None or str(algorithm).upper() in ALGORITHMS
    return None if is_known else f"quant_algo {str(algorithm)[:40]!r}"


def decode(name: str, parts: Parts) -> Expr:
    """Return the values in f32: code (scale of the group x scale of the weight)."""
    if parts.type_of(name) in fp8.FLOATS:
        return fp8.decode(name, parts)
    module = name.removesuffix(".weight")
    if parts.has(f"{module}.pre_quant_scale"):
        raise parts.error(name, f"has scaled inputs ({module + '.pre_quant_scale'!r}), which cannot be decoded")
    codes = parts.part(name, name, ("u8",))
    if len(codes.shape) < 2 or 2 * codes.shape[-1] % GROUP:
        raise parts.error(name, f"has shape {codes.shape}, expected rows of whole groups of {GROUP} codes")
    shape = (*codes.shape[:-1], 2 * codes.shape[-1])
    scales = parts.part(name, f"{name}_scale", ("f8_e4m3",), (*shape[:-1], shape[-1] // GROUP))
    whole = parts.part(name, f"{name}_scale_2", ("f32",))
    if whole.shape not in ((), (1,), shape[:-2]):
        raise parts.error(f"{name}_scale_2", f"has shape {whole.shape}, expected one number for {shape}")
    own = reshaped(whole, (*(whole.shape if len(whole.shape) == len(shape) - 2 else (1,) * (len(shape) - 2)), 1, 1))
    factors = apply("mul", spread(scales, shape, block=(1, GROUP)), broadcast(own, shape))
    return apply("mul", unpacked(codes, shape, Packing(4, codes.shape[-1]), E2M1), factors)
