"""Legacy GGML types: blocks of 32 values with a scale, plus a minimum if the name ends in 1."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

Q4_0 = Codec("q4_0", 32, 18, "q4_0", takes_imatrix=True, weighs_whole_rows=True)
Q4_1 = Codec("q4_1", 32, 20, "q4_1", takes_imatrix=True, weighs_whole_rows=True)
Q5_0 = Codec("q5_0", 32, 22, "q5_0", takes_imatrix=True, weighs_whole_rows=True)
Q5_1 = Codec("q5_1", 32, 24, "q5_1", takes_imatrix=True, weighs_whole_rows=True)
Q8_0 = Codec("q8_0", 32, 34, "q8_0")
