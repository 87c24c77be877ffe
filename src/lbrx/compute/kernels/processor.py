"""What the processor has, for kernels that come in two forms. Object code is kept by processor."""

from __future__ import annotations

import llvmlite.binding as llvm

HAS_512_BITS: bool = llvm.get_host_cpu_features().get("avx512bw", False)
"""Whether there are 32 registers of 512 bits, and instructions for words in them."""
