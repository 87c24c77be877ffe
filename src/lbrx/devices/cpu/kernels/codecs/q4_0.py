"""Q4_0: f16 scale and 32 codes of four bits, in 18 bytes; a value is (code - 8) scale."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.codecs.legacy_blocks import make_codec

encode, encode_weighted, decode = make_codec(bits=4, has_min=False)
