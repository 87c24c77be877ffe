"""Q5_1: f16 scale and minimum, fifth bits and low halves, in 24 bytes; a value is code scale + minimum."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.codecs.legacy_blocks import make_codec

encode, encode_weighted, decode = make_codec(bits=5, has_min=True)
