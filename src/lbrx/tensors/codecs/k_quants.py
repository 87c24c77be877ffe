"""The K-quants: blocks of 256 values in sub-blocks whose scales are themselves quantized."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

Q2_K = Codec("q2_k", 256, 84, "q2_k", takes_imatrix=True)
Q3_K = Codec("q3_k", 256, 110, "q3_k", takes_imatrix=True)
Q4_K = Codec("q4_k", 256, 144, "q4_k", takes_imatrix=True)
Q5_K = Codec("q5_k", 256, 176, "q5_k", takes_imatrix=True)
Q6_K = Codec("q6_k", 256, 210, "q6_k", takes_imatrix=True)
