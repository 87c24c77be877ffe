"""Types for models whose weights are -1, 0 or 1."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

TQ1_0 = Codec("tq1_0", 256, 54, "tq1_0")
TQ2_0 = Codec("tq2_0", 256, 66, "tq2_0")
