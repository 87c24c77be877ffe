"""Types of floats of four bits."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Quant

MXFP4 = Quant("mxfp4", 32, 17, "mxfp4")
NVFP4 = Quant("nvfp4", 64, 36, "nvfp4")
