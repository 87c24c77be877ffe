"""Q5_0: f16 scale, 4 bytes of fifth bits and 16 of low halves, in 22 bytes; a value is (code - 16) scale."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.codecs.legacy_blocks import make_codec

encode, encode_weighted, decode = make_codec(bits=5, has_min=False)
