"""Q4_1: f16 scale and minimum and 32 codes of four bits, in 20 bytes; a value is code scale + minimum."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.codecs.legacy_blocks import make_codec

encode, encode_weighted, decode = make_codec(bits=4, has_min=True)
