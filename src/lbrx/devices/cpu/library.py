"""Everything that generated kernels call, by name; and a fingerprint of it for the cache of compiled kernels."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from lbrx.devices.cpu import elements, maths, random, selection, tiles

_MATHS = ("exp", "log", "sin", "cos", "acos")

LIBRARY: dict[str, Any] = {
    **elements.ELEMENT_FUNCTIONS,
    **tiles.TILE_FUNCTIONS,
    **selection.SELECTION_FUNCTIONS,
    **{f"{name}_{kind}": getattr(maths, f"{name}_{kind}") for name in _MATHS for kind in ("f32", "f64")},
    "uniform_f32": random.uniform_f32,
    "normal_f32": random.normal_f32,
}

globals().update(LIBRARY)


@cache
def fingerprint() -> str:
    """A digest of the sources: kernels compiled against other sources are not used."""
    digest = hashlib.sha256()
    for module in (elements, tiles, selection, maths, random):
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()
