"""Everything that generated kernels call, by name."""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.kernels import pair_sums, random, ranking, selection, tile_reductions
from lbrx.devices.cpu.simd import division, elements, maths, memory, scalars

_MATHS = ("exp", "log", "sin", "cos", "acos", "tanh", "erf")

LIBRARY: dict[str, Any] = {
    **elements.ELEMENT_FUNCTIONS,
    **memory.MEMORY_FUNCTIONS,
    **tile_reductions.REDUCTION_FUNCTIONS,
    **pair_sums.PAIR_FUNCTIONS,
    **selection.SELECTION_FUNCTIONS,
    **ranking.RANKING_FUNCTIONS,
    **{f"{name}_{dtype}": getattr(maths, f"{name}_{dtype}") for name in _MATHS for dtype in ("f32", "f64")},
    **division.DIVISION_FUNCTIONS,
    "low_word": scalars.low_word,
    "uniform_f32": random.uniform_f32,
    "normal_f32": random.normal_f32,
}
