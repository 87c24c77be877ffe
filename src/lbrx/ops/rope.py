"""Rotary position embedding of queries or keys. Cosines and sines are rounded to f32 once."""

from __future__ import annotations

import numpy.typing as npt

from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.device import device, device_for
from lbrx.errors import ShapeError
from lbrx.settings import settings
from lbrx.tensors.rope import RopeFrequencies, RopeStyle, rope_tables


def apply_rope(x: Values, positions: npt.ArrayLike, frequencies: RopeFrequencies, style: RopeStyle = "neox") -> Floats:
    """Rotate queries or keys of shape [..., n, d]. ``positions`` [n] holds the position of each row.

    ``"neox"`` pairs elements i and i + dims / 2 of a head, ``"interleaved"`` elements 2 i and 2 i + 1. Elements
    beyond the frequencies are not changed.

    >>> import numpy as np
    >>> quarter = RopeFrequencies(np.array([np.pi / 2]))
    >>> apply_rope(np.array([[1.0, 0.0], [1.0, 0.0]], np.float32), [0, 1], quarter).round(6)
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    values = floats(x)
    tables = rope_tables(values.shape, positions, frequencies, style)
    return device(settings.device).apply("rope", values, tables, (float(style == "interleaved"),))


def rotate(x: Values, cosines: Floats, sines: Floats, style: RopeStyle = "neox") -> Floats:
    """Do what `apply_rope` does, with cosines and sines [n, pairs] from `lbrx.tensors.rope.turns`.

    >>> import numpy as np
    >>> zero, one = np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32)
    >>> rotate(np.array([[1.0, 2.0]], np.float32), zero, one)
    array([[-2.,  1.]], dtype=float32)
    """
    values = floats(x)
    rows, pairs = cosines.shape
    if values.ndim < 2 or values.shape[-2] != rows or 2 * pairs > values.shape[-1] or sines.shape != cosines.shape:
        raise ShapeError(
            f"rope: values of shape {values.shape} do not match cosines of shape {cosines.shape}; "
            "expected [..., n, d] and [n, at most d / 2]"
        )
    return device_for(values).apply("rope", values, (cosines, sines), (float(style == "interleaved"),))
