"""Weights as a pure function of the name and shape of a tensor, so that golden files do not contain weights."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

_SPREAD = 3**0.5  # uniform values from -1 to 1 have a standard deviation of 1 / sqrt(3)


def seeded(name: str, shape: Sequence[int], copy: int = 0) -> Array:
    """Return the values of a tensor; ``copy`` selects one of several models with the same tensors.

    Matrices have the standard deviation 2 / sqrt(columns), so that every tensor matters. Vectors are 1 +- 0.3 times a
    random number, and biases 0.3 times one. The bits come straight from the generator: they do not depend on the
    version of NumPy.
    """
    generator = np.random.Philox(key=zlib.crc32(f"{copy}:{name}".encode()))
    count = math.prod(shape)
    bits = np.asarray(generator.random_raw(count), np.uint64).reshape(-1)
    uniform = (bits >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1
    values = (_SPREAD * uniform).reshape(tuple(shape))
    if len(shape) > 1:
        inputs = math.prod(shape[1:]) if len(shape) > 3 else shape[-1]
        values *= 2 / math.sqrt(inputs)
    else:
        values = 0.3 * values + (0 if name.rpartition(".")[2].endswith("bias") else 1)
    return np.asarray(values, np.float32)


def seeded_model(shapes: Mapping[str, Sequence[int]], copy: int = 0) -> dict[str, Array]:
    """Return the values of all tensors of a model."""
    return {name: seeded(name, shape, copy) for name, shape in shapes.items()}


def write_seeded(path: Path, shapes: Mapping[str, Sequence[int]], copy: int = 0) -> None:
    """Write the tensors to a SafeTensors file."""
    from safetensors.numpy import save_file

    save_file(seeded_model(shapes, copy), path, {"format": "pt"})
