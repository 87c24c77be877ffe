"""Functions of higher layers that methods of tensors call, found by name when they are first used."""

from __future__ import annotations

from functools import cache
from typing import Any

from lbrx.registry import TENSOR_FUNCTIONS, load


@cache
def function(name: str) -> Any:
    """A function of `lbrx.registry.TENSOR_FUNCTIONS`.

    >>> function("shard").__module__
    'lbrx.ops.shards'
    """
    return load(TENSOR_FUNCTIONS[name])
