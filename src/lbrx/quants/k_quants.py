"""The K-quants: blocks of 256 in sub-blocks whose scales are coded themselves."""

from __future__ import annotations

from lbrx.quants.quant import Quant

_OF_16 = ("vectors", "lanes", "searches", "super_blocks")
_OF_32 = (*_OF_16, "super_blocks_32")

Q2_K = Quant("q2_k", 256, 84, "q2_k", _OF_16, takes_imatrix=True)
Q3_K = Quant("q3_k", 256, 110, "q3_k", _OF_16, takes_imatrix=True)
Q4_K = Quant("q4_k", 256, 144, "q4_k", _OF_32, takes_imatrix=True)
Q5_K = Quant("q5_k", 256, 176, "q5_k", _OF_32, takes_imatrix=True)
Q6_K = Quant("q6_k", 256, 210, "q6_k", _OF_16, takes_imatrix=True)
