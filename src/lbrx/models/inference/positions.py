"""Positions of tokens: rotations of queries and keys and other tables, computed once per pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from lbrx.models.inference.weights import Floats
from lbrx.tensors.rope import RopeConfig, RopeFrequencies, rope_frequencies, turns

MakeTables = Callable[[int, int], tuple[Floats, ...]]
"""Makes the tables of so many tokens from a position on. Their shapes depend on the number of tokens only."""


class Rotation:
    """The frequencies of each type of layer. ``factors`` divide the frequencies of every layer."""

    def __init__(self, factors: Floats | None = None) -> None:
        self._factors = factors
        self._frequencies: dict[RopeConfig, tuple[int, RopeFrequencies]] = {}

    def frequencies(self, rope: RopeConfig, tokens: int = 0) -> RopeFrequencies:
        """Return the frequencies of a type of layer in a text of so many tokens."""
        length = rope.depends_on_length(tokens)
        known = self._frequencies.get(rope)
        if known is None or known[0] != length:
            known = self._frequencies[rope] = length, rope_frequencies(rope, self._factors, tokens)
        return known[1]

    def turns(self, rope: RopeConfig, first: int, tokens: int) -> tuple[Floats, Floats]:
        """Return cosines and sines ``[tokens, pairs]`` of tokens from position ``first`` on."""
        return turns(np.arange(first, first + tokens), self.frequencies(rope, first + tokens))


class Positions:
    """The positions of the tokens of one pass."""

    def __init__(self, rotation: Rotation, first: int, tokens: int) -> None:
        self._rotation, self._first, self._tokens = rotation, first, tokens
        self._tables: dict[Hashable, tuple[Floats, ...]] = {}
        self.shared: dict[str, Any] = {}  # what layers have computed for others

    def turns(self, rope: RopeConfig) -> tuple[Floats, ...]:
        """Return cosines and sines for layers of a type."""
        return self.tables(rope, partial(self._rotation.turns, rope))

    def tables(self, key: Hashable, make: MakeTables) -> tuple[Floats, ...]:
        """Return arrays that depend on the positions of the tokens. Layers with the same key share them."""
        known = self._tables.get(key)
        if known is None:
            known = self._tables[key] = make(self._first, self._tokens)
        return known
