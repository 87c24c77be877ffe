"""4-bit float types."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

MXFP4 = Codec("mxfp4", 32, 17, "mxfp4")
NVFP4 = Codec("nvfp4", 64, 36, "nvfp4")
