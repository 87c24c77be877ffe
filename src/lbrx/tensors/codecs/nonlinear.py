"""4-bit types whose codes are indices into a table of values."""

from __future__ import annotations

from lbrx.tensors.codecs.codec import Codec

IQ4_NL = Codec("iq4_nl", 32, 18, "iq4_nl", takes_imatrix=True)
IQ4_XS = Codec("iq4_xs", 256, 136, "iq4_xs", takes_imatrix=True)
