"""Types whose codes are indices into a codebook of value groups."""

from __future__ import annotations

from lbrx.tensors.codecs.codebook_tables import iq1, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs
from lbrx.tensors.codecs.codec import Codec, Table
from lbrx.tensors.codecs.neighbour_tables import (
    iq1_neighbours,
    iq2_s_neighbours,
    iq2_xs_neighbours,
    iq2_xxs_neighbours,
    iq3_s_neighbours,
    iq3_xxs_neighbours,
)


def _coded(name: str, block_bytes: int, codebook: Table, neighbours: Table, *, needs_imatrix: bool = False) -> Codec:
    return Codec(
        name,
        256,
        block_bytes,
        name,
        takes_imatrix=True,
        needs_imatrix=needs_imatrix,
        codebook=codebook,
        encoder_table=neighbours,
    )


IQ1_S = _coded("iq1_s", 50, iq1, iq1_neighbours, needs_imatrix=True)
IQ1_M = _coded("iq1_m", 56, iq1, iq1_neighbours)
IQ2_XXS = _coded("iq2_xxs", 66, iq2_xxs, iq2_xxs_neighbours, needs_imatrix=True)
IQ2_XS = _coded("iq2_xs", 74, iq2_xs, iq2_xs_neighbours, needs_imatrix=True)
IQ2_S = _coded("iq2_s", 82, iq2_s, iq2_s_neighbours)
IQ3_XXS = _coded("iq3_xxs", 98, iq3_xxs, iq3_xxs_neighbours)
IQ3_S = _coded("iq3_s", 110, iq3_s, iq3_s_neighbours)
