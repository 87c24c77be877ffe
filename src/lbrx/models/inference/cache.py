"""The KV cache: keys and values of previous tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lbrx.models.inference.spec import ModelSpec

Floats = npt.NDArray[np.float32]
_FIRST_CAPACITY = 64


class KeyValueCache:
    """Keys and values of every layer, for ``length`` tokens. Its memory doubles when it is full."""

    __slots__ = ("_keys", "_spec", "_values", "length")

    def __init__(self, spec: ModelSpec, capacity: int = _FIRST_CAPACITY) -> None:
        shape = (spec.kv_heads, max(capacity, 1), spec.head_dim)
        self._spec = spec
        self._keys = [np.empty(shape, np.float32) for _ in spec.layers]
        self._values = [np.empty(shape, np.float32) for _ in spec.layers]
        self.length = 0

    def extend(self, layer: int, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Store the keys and values ``[kv_heads, n, head_dim]`` of new tokens; return those of all tokens.

        ``length`` does not change: call ``advance`` when all layers have stored theirs.
        """
        end = self.length + keys.shape[1]
        self._keys[layer] = _with_room(self._keys[layer], self.length, end)
        self._values[layer] = _with_room(self._values[layer], self.length, end)
        self._keys[layer][:, self.length : end] = keys
        self._values[layer][:, self.length : end] = values
        return self._keys[layer][:, :end], self._values[layer][:, :end]

    def advance(self, tokens: int) -> None:
        """Count this many tokens as stored by all layers."""
        self.length += tokens


def _with_room(stored: Floats, used: int, needed: int) -> Floats:
    heads, capacity, head_dim = stored.shape
    if needed <= capacity:
        return stored
    larger = np.empty((heads, max(needed, 2 * capacity), head_dim), np.float32)
    larger[:, :used] = stored[:, :used]
    return larger
