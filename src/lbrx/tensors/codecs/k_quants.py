"""The K-quants: blocks of 256 in sub-blocks whose scales are coded themselves."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Quant

Q2_K = Quant("q2_k", 256, 84, "q2_k", takes_imatrix=True)
Q3_K = Quant("q3_k", 256, 110, "q3_k", takes_imatrix=True)
Q4_K = Quant("q4_k", 256, 144, "q4_k", takes_imatrix=True)
Q5_K = Quant("q5_k", 256, 176, "q5_k", takes_imatrix=True)
Q6_K = Quant("q6_k", 256, 210, "q6_k", takes_imatrix=True)
