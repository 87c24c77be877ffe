"""The KV cache of a model."""

from __future__ import annotations

from lbrx.engine import key_values
from lbrx.models.inference.spec import ModelSpec


class KeyValueCache(key_values.KeyValueCache):
    """What the layers remember of ``length`` tokens. Memory for keys and values doubles when it is full.

    ``kv_type`` is f32, f16 or bf16: half types need half of the memory.
    """

    __slots__ = ()

    def __init__(self, spec: ModelSpec, capacity: int = 0, kv_type: str = "f32", sequences: int = 1) -> None:
        memories = [layer.memory for layer in spec.layers]
        shapes = [memory.keys or (0, 0, 0) for memory in memories]
        super().__init__(shapes, capacity, kv_type, [dict(memory.states) for memory in memories], sequences)
