"""What the processor has, for kernels that come in two forms. Object code is kept by processor."""

from __future__ import annotations

import platform

import llvmlite.binding as llvm

from lbrx.base import system

_FEATURES = llvm.get_host_cpu_features()
IS_X86 = platform.machine() in ("x86_64", "AMD64")
IS_ARM = platform.machine() in ("arm64", "aarch64")
HAS_AVX2: bool = IS_X86 and _FEATURES.get("avx2", False)

HAS_512_BITS: bool = _FEATURES.get("avx512bw", False)
"""Whether there are 32 registers of 512 bits, and instructions for i16 in them."""

HAS_SDOT: bool = IS_ARM and system.has_dot_products() and llvm.get_host_cpu_name() != "generic"
"""Whether products of i8 are summed in i32 by one instruction. LLVM does not list it but knows it by the name."""

MULTIPLIES_BF16: bool = _FEATURES.get("avx512bf16", False)
"""Whether there are instructions that multiply bf16 and sum in f32."""

LINE_BYTES = 64
"""The bytes of a cache line."""

PIECE_BYTES = 2048
"""The bytes of a result that are moved past the caches at a time."""
