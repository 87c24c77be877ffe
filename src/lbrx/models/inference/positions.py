"""Rotate queries and keys by their positions; frequencies are computed once per layer type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lbrx.models.inference.weights import Floats
from lbrx.ops.rope import apply_rope
from lbrx.tensors.rope import RopeConfig, RopeFrequencies, RopeStyle, rope_frequencies


class Rotation:
    """Rotates queries and keys ``[heads, n, head_dim]``. ``factors`` divide the frequencies of every layer."""

    def __init__(self, factors: Floats | None = None) -> None:
        self._factors = factors
        self._frequencies: dict[RopeConfig, RopeFrequencies] = {}

    def applied(self, heads: Floats, positions: npt.NDArray[np.int64], rope: RopeConfig, style: RopeStyle) -> Floats:
        """Return the rotated heads of tokens at these positions."""
        frequencies = self._frequencies.get(rope)
        if frequencies is None:
            frequencies = self._frequencies[rope] = rope_frequencies(rope, self._factors)
        return apply_rope(heads, positions, frequencies, style)
