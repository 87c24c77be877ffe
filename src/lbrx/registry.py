"""What can be asked for by name: one line each, as ``name -> "module:object"``.

Nothing is imported until it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

METHODS: dict[str, str] = {
    "linear": "lbrx.methods.linear:linear",
    "passthrough": "lbrx.methods.passthrough:passthrough",
    "slerp": "lbrx.methods.slerp:slerp",
    "nuslerp": "lbrx.methods.nuslerp:nuslerp",
    "multislerp": "lbrx.methods.multislerp:multislerp",
    "karcher": "lbrx.methods.karcher:karcher",
    "task_arithmetic": "lbrx.methods.task_arithmetic:task_arithmetic",
    "ties": "lbrx.methods.ties:ties",
    "dare_linear": "lbrx.methods.dare_linear:dare_linear",
    "dare_ties": "lbrx.methods.dare_ties:dare_ties",
    "della": "lbrx.methods.della:della",
    "della_linear": "lbrx.methods.della_linear:della_linear",
    "breadcrumbs": "lbrx.methods.breadcrumbs:breadcrumbs",
    "breadcrumbs_ties": "lbrx.methods.breadcrumbs_ties:breadcrumbs_ties",
    "model_stock": "lbrx.methods.model_stock:model_stock",
    "nearswap": "lbrx.methods.nearswap:nearswap",
    "arcee_fusion": "lbrx.methods.arcee_fusion:arcee_fusion",
    "sce": "lbrx.methods.sce:sce",
    "ram": "lbrx.methods.ram:ram",
    "ramplus_tl": "lbrx.methods.ramplus_tl:ramplus_tl",
}
"""The functions of the built-in merge methods; their parameters are described in ``lbrx.recipe.method_specs``."""


def load(reference: str) -> Any:
    """The object that a line of a registry points to.

    >>> load("lbrx.methods.linear:linear").__name__
    'linear'
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


QUANTS: dict[str, str] = {
    "q4_0": "lbrx.quants.legacy:Q4_0",
    "q4_1": "lbrx.quants.legacy:Q4_1",
    "q5_0": "lbrx.quants.legacy:Q5_0",
    "q5_1": "lbrx.quants.legacy:Q5_1",
    "q8_0": "lbrx.quants.legacy:Q8_0",
    "q2_k": "lbrx.quants.k_quants:Q2_K",
    "q3_k": "lbrx.quants.k_quants:Q3_K",
    "q4_k": "lbrx.quants.k_quants:Q4_K",
    "q5_k": "lbrx.quants.k_quants:Q5_K",
    "q6_k": "lbrx.quants.k_quants:Q6_K",
    "iq4_nl": "lbrx.quants.nonlinear:IQ4_NL",
    "iq4_xs": "lbrx.quants.nonlinear:IQ4_XS",
    "tq1_0": "lbrx.quants.ternary:TQ1_0",
    "tq2_0": "lbrx.quants.ternary:TQ2_0",
    "mxfp4": "lbrx.quants.small_floats:MXFP4",
    "nvfp4": "lbrx.quants.small_floats:NVFP4",
    "iq1_s": "lbrx.quants.codebooks:IQ1_S",
    "iq1_m": "lbrx.quants.codebooks:IQ1_M",
    "iq2_xxs": "lbrx.quants.codebooks:IQ2_XXS",
    "iq2_xs": "lbrx.quants.codebooks:IQ2_XS",
    "iq2_s": "lbrx.quants.codebooks:IQ2_S",
    "iq3_xxs": "lbrx.quants.codebooks:IQ3_XXS",
    "iq3_s": "lbrx.quants.codebooks:IQ3_S",
}
"""The quantization types of GGUF files, as records of `lbrx.quants.quant.Quant`."""

SELF_TESTS: dict[str, str] = {
    "passes": "lbrx.devices.metal.passes.self_tests:self_tests",
    "kernels": "lbrx.devices.metal.kernels.self_tests:self_tests",
}
"""Families of Metal kernels: functions that give their self-tests by name (see `lbrx.devices.metal.self_test`)."""
