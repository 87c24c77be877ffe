"""Everything that generated kernels call, by name."""

from __future__ import annotations

from typing import Any

from lbrx.devices.cpu.simd import elements
from lbrx.devices.cpu.simd import line_stores
from lbrx.devices.cpu.simd import maths
from lbrx.devices.cpu.simd import narrowing
from lbrx.devices.cpu.kernels import pair_sums
from lbrx.devices.cpu.kernels import random
from lbrx.devices.cpu.kernels import ranking
from lbrx.devices.cpu.kernels import selection
from lbrx.devices.cpu.simd import tiles

_MATHS = ("exp", "log", "sin", "cos", "acos")

LIBRARY: dict[str, Any] = {
    **elements.ELEMENT_FUNCTIONS,
    **tiles.TILE_FUNCTIONS,
    **pair_sums.PAIR_FUNCTIONS,
    **line_stores.LINE_FUNCTIONS,
    **selection.SELECTION_FUNCTIONS,
    **ranking.RANKING_FUNCTIONS,
    **{f"{name}_{kind}": getattr(maths, f"{name}_{kind}") for name in _MATHS for kind in ("f32", "f64")},
    "low_word": narrowing.low_word,
    "uniform_f32": random.uniform_f32,
    "normal_f32": random.normal_f32,
}
