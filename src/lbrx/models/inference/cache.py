"""The KV cache of a model."""

from __future__ import annotations

from lbrx.engine import key_values
from lbrx.models.inference.spec import ModelSpec


class KeyValueCache(key_values.KeyValueCache):
    """Keys and values of every layer, for ``length`` tokens. Its memory doubles when it is full.

    ``kv_type`` is f32, f16 or bf16: half types need half of the memory.
    """

    __slots__ = ()

    def __init__(self, spec: ModelSpec, capacity: int = 0, kv_type: str = "f32") -> None:
        super().__init__([(spec.kv_heads, spec.head_dim, spec.head_dim)] * len(spec.layers), capacity, kv_type)
