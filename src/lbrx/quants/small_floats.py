"""Types of floats of four bits."""

from __future__ import annotations

from lbrx.quants.quant import Quant

_HELPERS = ("vectors", "halves", "lanes", "small_floats")

MXFP4 = Quant("mxfp4", 32, 17, "mxfp4", _HELPERS)
NVFP4 = Quant("nvfp4", 64, 36, "nvfp4", _HELPERS)
