"""What the processor has, for kernels that come in two forms. Object code is kept by processor.

Numba's variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES choose another processor, for tests of the other forms.
"""

from __future__ import annotations

import os
import platform

import llvmlite.binding as llvm


def _has_dot_products() -> bool:
    from lbrx.base import system  # at the top, a change there would make all cached kernels stale

    return system.has_dot_products()


_CHOSEN = os.environ.get("NUMBA_CPU_FEATURES")
_FEATURES: dict[str, bool] = dict(llvm.get_host_cpu_features())
if _CHOSEN is not None:
    _FEATURES = {feature[1:]: feature[0] == "+" for feature in _CHOSEN.split(",") if feature}
PROCESSOR = (
    llvm.get_process_triple(),
    os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(),
    _CHOSEN or llvm.get_host_cpu_features().flatten(),
)
"""What object code depends on."""

IS_X86 = platform.machine() in ("x86_64", "AMD64")
IS_ARM = platform.machine() in ("arm64", "aarch64")
HAS_AVX2: bool = IS_X86 and _FEATURES.get("avx2", False)

HAS_512_BITS: bool = _FEATURES.get("avx512bw", False)
"""Whether there are 32 registers of 512 bits, and instructions for i16 in them."""

HAS_VNNI: bool = HAS_512_BITS and _FEATURES.get("avx512vnni", False)
"""Whether products of u8 and i8 are summed in i32 by one instruction."""

DOT_BYTES: int = 64 if HAS_VNNI else 32 if _FEATURES.get("avxvnni", False) else 0
"""The bytes of a register in which products of u8 and i8 are summed in i32 by one instruction; 0 if there is none."""

HAS_SDOT: bool = IS_ARM and _has_dot_products() and llvm.get_host_cpu_name() != "generic"
"""Whether products of i8 are summed in i32 by one instruction. LLVM does not list it but knows it by the name."""

MULTIPLIES_BF16: bool = _FEATURES.get("avx512bf16", False)
"""Whether there are instructions that multiply bf16 and sum in f32."""

LINE_BYTES = 64
"""The bytes of a cache line."""

PIECE_BYTES = 2048
"""The bytes of a result that are moved past the caches at a time."""
