"""The codecs that kernels multiply by their codes."""

from __future__ import annotations

from lbrx.devices.cpu.kernels.groups import codebooks, k_quants, legacy, tables, ternary
from lbrx.devices.cpu.kernels.groups.group import Group

GROUPS: dict[str, Group] = {
    "q4_0": legacy.Q4_0,
    "q4_1": legacy.Q4_1,
    "q5_0": legacy.Q5_0,
    "q5_1": legacy.Q5_1,
    "q8_0": legacy.Q8_0,
    "q2_k": k_quants.Q2_K,
    "q3_k": k_quants.Q3_K,
    "q4_k": k_quants.Q4_K,
    "q5_k": k_quants.Q5_K,
    "q6_k": k_quants.Q6_K,
    "iq4_nl": tables.IQ4_NL,
    "iq4_xs": tables.IQ4_XS,
    "mxfp4": tables.MXFP4,
    "nvfp4": tables.NVFP4,
    "tq1_0": ternary.TQ1_0,
    "tq2_0": ternary.TQ2_0,
    "q1_0": ternary.Q1_0,
    "q2_0": ternary.Q2_0,
    "iq1_s": codebooks.IQ1_S,
    "iq1_m": codebooks.IQ1_M,
    "iq2_xxs": codebooks.IQ2_XXS,
    "iq2_xs": codebooks.IQ2_XS,
    "iq2_s": codebooks.IQ2_S,
    "iq3_xxs": codebooks.IQ3_XXS,
    "iq3_s": codebooks.IQ3_S,
}
