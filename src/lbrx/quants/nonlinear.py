"""Types of four bits whose codes stand for the values of a table."""

from __future__ import annotations

from lbrx.quants.quant import Quant

_HELPERS = ("vectors", "halves", "lanes", "searches", "nonlinear")

IQ4_NL = Quant("iq4_nl", 32, 18, "iq4_nl", _HELPERS, takes_imatrix=True)
IQ4_XS = Quant("iq4_xs", 256, 136, "iq4_xs", (*_HELPERS, "super_blocks"), takes_imatrix=True)
