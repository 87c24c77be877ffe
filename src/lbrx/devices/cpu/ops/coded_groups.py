"""What a product with coded vectors has to know of each codec before its kernels are compiled.

The descriptions of the codecs themselves are in `lbrx.devices.cpu.kernels.groups`.
"""

from __future__ import annotations

from typing import NamedTuple


class CodedGroup(NamedTuple):
    """``coder`` is the function of `coded_vectors` that lays vectors out as the codes of the codec.

    ``scaled`` elements have one scale, and one value to take off if ``has_lows``.
    """

    coder: str
    scaled: int = 32
    has_lows: bool = False


CODED_GROUPS = {
    "q4_0": CodedGroup("by_halves_of_32"),
    "q4_1": CodedGroup("by_halves_of_32", has_lows=True),
    "q5_0": CodedGroup("by_halves_of_32"),
    "q5_1": CodedGroup("by_halves_of_32", has_lows=True),
    "q8_0": CodedGroup("signed_in_order"),
    "q2_k": CodedGroup("by_halves_of_16", 16, has_lows=True),
    "q3_k": CodedGroup("by_halves_of_16", 16),
    "q4_k": CodedGroup("by_halves_of_32", has_lows=True),
    "q5_k": CodedGroup("by_halves_of_32", has_lows=True),
    "q6_k": CodedGroup("in_order_by_16", 16),
    "iq4_nl": CodedGroup("signed_by_halves_of_32"),
    "iq4_xs": CodedGroup("signed_by_halves_of_32"),
    "mxfp4": CodedGroup("signed_by_halves_of_32"),
    "nvfp4": CodedGroup("signed_by_halves_of_16", 16),
    "tq1_0": CodedGroup("by_halves_of_32"),
    "tq2_0": CodedGroup("by_halves_of_32"),
    "q1_0": CodedGroup("by_halves_of_32"),
    "q2_0": CodedGroup("by_halves_of_32"),
    "iq1_s": CodedGroup("signed_by_halves_of_32"),
    "iq1_m": CodedGroup("signed_by_halves_of_16", 16),
    "iq2_xxs": CodedGroup("signed_by_halves_of_32"),
    "iq2_xs": CodedGroup("signed_by_halves_of_16", 16),
    "iq2_s": CodedGroup("signed_by_halves_of_16", 16),
    "iq3_xxs": CodedGroup("signed_by_halves_of_32"),
    "iq3_s": CodedGroup("signed_by_halves_of_32"),
}
