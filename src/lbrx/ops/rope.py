"""Rotary position embedding applied to queries or keys. Cosines and sines are rounded to f32 once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.native import Floats, address, run
from lbrx.devices.cpu.ops.arrays import Values, floats
from lbrx.devices.cpu.ops.blas import in_ranges
from lbrx.tensors.rope import RopeFrequencies, RopeStyle, rope_tables

_CHUNK_ELEMENTS = 32 << 10


def apply_rope(x: Values, positions: npt.ArrayLike, frequencies: RopeFrequencies, style: RopeStyle = "neox") -> Floats:
    """Turn queries or keys of shape [..., n, d], where position i of ``positions`` [n] belongs to row i.

    ``"neox"`` pairs elements i and i + dims / 2 of a head, ``"interleaved"`` elements 2 i and 2 i + 1. Elements
    beyond the frequencies' are left as they are.

    >>> quarter = RopeFrequencies(np.array([np.pi / 2]))
    >>> apply_rope(np.array([[1.0, 0.0], [1.0, 0.0]], np.float32), [0, 1], quarter).round(6)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    values = floats(x)
    cosines, sines = rope_tables(values.shape, positions, frequencies, style)
    return _turned(values, cosines, sines, style == "interleaved")


def _turned(values: Floats, cosines: Floats, sines: Floats, near: bool) -> Floats:
    out = np.empty_like(values)
    if not values.size:
        return out
    rows, columns = values.shape[-2:]
    pairs = cosines.shape[1]
    source, target = address(values), address(out)

    def work(first: int, stop: int) -> None:
        for matrix in range(first, stop):
            at = 4 * rows * columns * matrix
            tables = address(cosines), address(sines)
            run("elementwise", "rope", source + at, target + at, rows, columns, pairs, *tables, int(near))

    in_ranges(values.size // (rows * columns), max(1, _CHUNK_ELEMENTS // (rows * columns)), work)
    return out
