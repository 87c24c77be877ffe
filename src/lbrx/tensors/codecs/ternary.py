"""Types for models whose weights are -1, 0 or 1, or only signs."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

TQ1_0 = Codec("tq1_0", 256, 54, "tq1_0")
TQ2_0 = Codec("tq2_0", 256, 66, "tq2_0")
Q1_0 = Codec("q1_0", 128, 18, "q1_0")
Q2_0 = Codec("q2_0", 64, 18, "q2_0")
