"""Results whose bytes depend on the processor, with the reason. ``make arm64`` accepts these and no others."""

from __future__ import annotations

NAN_SIGN = "the sign of a NaN that the processor makes: positive on arm64, negative on x86-64"
BLAS = "matrix products of f32 are BLAS's: OpenBLAS has other kernels for each processor"
EXPECTED: dict[str, str] = {
    **{f"{name} {dtype}": NAN_SIGN for name in ("acos", "sqrt", "inf - inf") for dtype in ("f32", "bf16", "f16")},
    **{f"linear {name}, nine vectors": BLAS for name in ("f32", "bf16", "f16")},
}
