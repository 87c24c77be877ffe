"""What the kernels are compared with: float64 NumPy, and weights of every type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import lbrx
import support
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import SCHEMES, Blocks
from lbrx.tensors.storage import CpuStorage

Array = npt.NDArray[Any]
FLOAT_TYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")
TYPE_NAMES = (*FLOAT_TYPES, "i8", *CODECS, *SCHEMES)
THREADS = (1, 2, 3)
GOLDEN = support.GOLDEN / "ggml" / "ggml_more_rows.npz"


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def weight_of(type_name: str, rows: int, columns: int, seed: int = 1) -> lbrx.Tensor:
    """A weight in memory: normal numbers, or for types with a codebook, random blocks that ggml has decoded."""
    values = lbrx.tensor(normal(rows, columns, seed=seed))
    if type_name in FLOAT_TYPES:
        return values.to(type_name).realize()
    if type_name == "i8":
        return (values * 20).to("i8").realize()
    if type_name in SCHEMES or codec(type_name).encoder_table is None:
        return values.quantize(type_name).realize()
    blocks = np.load(GOLDEN)[type_name.upper()].reshape(-1, codec(type_name).block_bytes)
    picked = np.random.default_rng(seed).integers(0, len(blocks), rows * columns // codec(type_name).block_elements)
    return lbrx.Tensor(Blocks(CpuStorage(np.ascontiguousarray(blocks[picked]).reshape(-1)), type_name, (rows, columns)))


def even_importance(type_name: str, columns: int) -> npt.NDArray[np.float32] | None:
    """Importances that are all equal, for types that cannot be encoded without."""
    return np.ones(columns, np.float32) if type_name in CODECS and codec(type_name).needs_imatrix else None


def wide(values: lbrx.Tensor | Array) -> npt.NDArray[np.float64]:
    """The values in float64."""
    array = values.to("f32").numpy() if isinstance(values, lbrx.Tensor) else np.asarray(values)
    return array.astype(np.float64)


def product_bound(x: Array, weight: Array) -> npt.NDArray[np.float64]:
    """What `linear` and `matmul` promise: k 2**-23 of the sum of the magnitudes of all products."""
    return (x.shape[-1] + 1) * 2.0**-23 * (abs(x) @ abs(weight).T) + 1e-37


def coded_bound(x: Array, weight: Array, bits: int = 16) -> npt.NDArray[np.float64]:
    """What a coded vector adds to it: half a step of 1 / 32639 or 1 / 127 of the largest number of each block of 32."""
    largest = abs(x).reshape(len(x), -1, 32).max(-1)
    magnitudes = abs(weight).reshape(len(weight), -1, 32).sum(-1)
    return (largest @ magnitudes.T) / (254 if bits == 8 else 65278) + 2.0**-99 * abs(weight).sum(-1)
