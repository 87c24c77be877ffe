"""Merge methods: pure functions from tensors and parameters to a tensor that has not been computed yet.

A function takes ``models``, and ``base`` if it treats one model as the base; then, by keyword, its parameters, with a
sequence of one value per model where models may differ; and ``context`` if it draws random numbers. A value that is not
a number (NaN) in an input is not a number in the output, whatever a method drops.
"""

from lbrx.jobs.merge.methods.method import (
    MergeContext,
    Method,
    check_code_allowed,
    is_custom_method,
    load_method,
    method_lookup,
    method_spec,
)
from lbrx.jobs.merge.methods.parameters import INPUT_TEXT, Limits, Lookup, MethodSpec, TensorParameters

__all__ = [
    "INPUT_TEXT",
    "Limits",
    "Lookup",
    "MergeContext",
    "Method",
    "MethodSpec",
    "TensorParameters",
    "check_code_allowed",
    "is_custom_method",
    "load_method",
    "method_lookup",
    "method_spec",
]
