"""Positions of tokens as rotations of queries and keys; cosines and sines are computed once per pass."""

from __future__ import annotations

import numpy as np

from lbrx.models.inference.weights import Floats
from lbrx.tensors.rope import RopeConfig, RopeFrequencies, rope_frequencies, turns

Turns = tuple[Floats, Floats]


class Rotation:
    """The frequencies of each type of layer. ``factors`` divide the frequencies of every layer."""

    def __init__(self, factors: Floats | None = None) -> None:
        self._factors = factors
        self._frequencies: dict[RopeConfig, RopeFrequencies] = {}

    def frequencies(self, rope: RopeConfig) -> RopeFrequencies:
        """Return the frequencies of a type of layer."""
        known = self._frequencies.get(rope)
        if known is None:
            known = self._frequencies[rope] = rope_frequencies(rope, self._factors)
        return known

    def turns(self, rope: RopeConfig, first: int, tokens: int) -> Turns:
        """Return cosines and sines ``[tokens, pairs]`` of tokens from position ``first`` on."""
        return turns(np.arange(first, first + tokens), self.frequencies(rope))


class Positions:
    """The positions of the tokens of one pass."""

    def __init__(self, rotation: Rotation, first: int, tokens: int) -> None:
        self._rotation, self._first, self._tokens = rotation, first, tokens
        self._turns: dict[RopeConfig, Turns] = {}

    def turns(self, rope: RopeConfig) -> Turns:
        """Return cosines and sines for layers of a type."""
        known = self._turns.get(rope)
        if known is None:
            known = self._turns[rope] = self._rotation.turns(rope, self._first, self._tokens)
        return known
