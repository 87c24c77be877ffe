"""The KV cache: keys and values of previous tokens, in f32, f16 or bf16."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.engine.arrays import Floats
from lbrx.engine.attention_options import DTYPE_NAMES
from lbrx.errors import UsageError
from lbrx.memory.scratch import ALIGNMENT
from lbrx.tensors.shape import Shape

KV_TYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
"""The dtypes of keys and values, by name."""

_FIRST_CAPACITY = 64


def check_kv_type(name: str) -> None:
    """Raise unless a KV cache can have this type.

    >>> check_kv_type("f16")
    """
    if name not in KV_TYPES:
        raise UsageError(f"unknown type {name!r} of the KV cache; expected one of {', '.join(KV_TYPES)}")


class KeyValues:
    """Keys ``[heads, capacity, key_size]`` and values ``[heads, capacity, value_size]`` of one layer."""

    __slots__ = ("_cache", "keys", "number", "values")

    def __init__(self, cache: KeyValueCache, number: int, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        self._cache = weakref.ref(cache)  # in a cycle, the arrays would stay until the next garbage collection
        self.number = number
        self.keys, self.values = keys, values

    @property
    def length(self) -> int:
        """The number of tokens that all layers have stored."""
        return self._owner.length

    @property
    def sequences(self) -> int:
        """The number of texts of equal length: the heads of each follow those of the one before."""
        return self._owner.sequences

    @property
    def _owner(self) -> KeyValueCache:
        cache = self._cache()
        if cache is None:
            raise ReferenceError("the cache of these keys and values does not exist any more")
        return cache

    def extend(self, keys: Floats, values: Floats) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Store the keys and values ``[heads, n, size]`` of new tokens; return those of all tokens."""
        start, end = self.length, self.length + keys.shape[1]
        self._owner.reserve(keys.shape[1])
        with np.errstate(all="ignore"):  # values beyond the range of f16 become infinite
            self.keys[:, start:end] = keys
            self.values[:, start:end] = values
        return self.keys[:, :end], self.values[:, :end]

    def larger(self, used: int, capacity: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return copies of keys and values with room for more tokens."""
        return _larger(self.keys, used, capacity), _larger(self.values, used, capacity)


class LayerState:
    """The arrays of f32 that one layer remembers besides keys and values, by name. They are zeros at first."""

    __slots__ = ("arrays", "number")

    def __init__(self, number: int, shapes: Mapping[str, Shape]) -> None:
        self.number = number
        self.arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


class KeyValueCache:
    """Keys and values of every layer, for ``length`` tokens. Its memory doubles when it is full.

    ``shapes`` has the number of heads and the sizes of a key and of a value for each layer, and ``states`` the shapes
    of further arrays, whose size does not depend on the number of tokens. ``version`` changes when arrays move. With
    several ``sequences``, it is for texts of equal length, of which each has one new token at a time.
    """

    __slots__ = ("__weakref__", "_capacity", "dtype_name", "layers", "length", "sequences", "states", "version")

    def __init__(
        self,
        shapes: Sequence[tuple[int, int, int]],
        capacity: int = 0,
        dtype_name: str = "f32",
        states: Sequence[Mapping[str, Shape]] = (),
        sequences: int = 1,
    ) -> None:
        check_kv_type(dtype_name)
        self.sequences = sequences
        self._capacity = capacity or _FIRST_CAPACITY
        self.dtype_name = dtype_name
        self.length = 0
        self.version = 0
        self.layers = [
            KeyValues(
                self, number, self._empty(sequences * heads, key_size), self._empty(sequences * heads, value_size)
            )
            for number, (heads, key_size, value_size) in enumerate(shapes)
        ]
        self.states = [LayerState(number, arrays) for number, arrays in enumerate(states)]

    def _empty(self, heads: int, size: int) -> npt.NDArray[Any]:
        return _aligned((heads, self._capacity, size), KV_TYPES[self.dtype_name])

    def reserve(self, tokens: int) -> None:
        """Make room for so many further tokens."""
        needed = self.length + tokens
        if needed <= self._capacity:
            return
        capacity = max(needed, 2 * self._capacity)
        larger = [layer.larger(self.length, capacity) for layer in self.layers]  # nothing changes if memory is short
        for layer, arrays in zip(self.layers, larger, strict=True):
            layer.keys, layer.values = arrays
        self._capacity = capacity
        self.version += 1

    def restart(self, number: int) -> None:
        """Forget all tokens, for a text of its own in one layer."""
        self.length = 0
        for array in self.states[number].arrays.values():
            array[...] = 0

    def advance(self, tokens: int) -> None:
        """Count this many tokens as stored by all layers."""
        self.length += tokens

    def shorten(self, length: int) -> bool:
        """Forget the tokens after the first ``length``. Returns False, and changes nothing, if a layer has a state,
        which cannot go back.
        """
        if length != self.length and any(state.arrays for state in self.states):
            return False
        self.length = min(length, self.length)
        return True


def _aligned(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array that begins with a cache line, so that no vector of a row of 64 bytes crosses one."""
    memory = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + memory.size - ALIGNMENT].view(dtype).reshape(shape)


def _larger(stored: npt.NDArray[Any], used: int, capacity: int) -> npt.NDArray[Any]:
    larger = _aligned((stored.shape[0], capacity, stored.shape[2]), stored.dtype)
    if len(stored):  # a layer without keys never grew
        larger[:, :used] = stored[:, :used]
    return larger
