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
