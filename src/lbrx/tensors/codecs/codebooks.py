"""Types whose codes are indices into a codebook of value groups. lbrx decodes them but cannot encode them."""

from __future__ import annotations

from lbrx.tensors.codecs.codebook_tables import iq1, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from lbrx.tensors.codecs.codec import Codec

IQ1_S = Codec("iq1_s", 256, 50, "iq1_s", can_encode=False, codebook=iq1)
IQ1_M = Codec("iq1_m", 256, 56, "iq1_m", can_encode=False, codebook=iq1)
IQ2_XXS = Codec("iq2_xxs", 256, 66, "iq2_xxs", can_encode=False, codebook=iq2_xxs)
IQ2_XS = Codec("iq2_xs", 256, 74, "iq2_xs", can_encode=False, codebook=iq2_xs)
IQ2_S = Codec("iq2_s", 256, 82, "iq2_s", can_encode=False, codebook=iq2_s)
IQ3_XXS = Codec("iq3_xxs", 256, 98, "iq3_xxs", can_encode=False, codebook=iq3_xxs)
IQ3_S = Codec("iq3_s", 256, 110, "iq3_s", can_encode=False, codebook=iq3_s)
