"""Functions of higher layers that Tensor methods call, looked up by name on first use."""

from __future__ import annotations

from functools import cache
from typing import Any

from lbrx.registry import TENSOR_FUNCTIONS, load


@cache
def function(name: str) -> Any:
    """Return a function of `lbrx.registry.TENSOR_FUNCTIONS`.

    >>> function("shard").__module__
    'lbrx.ops.shards'
    """
    return load(TENSOR_FUNCTIONS[name])
