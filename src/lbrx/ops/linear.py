"""linear: activations times a weight in the layout of models, with one row per output."""

from __future__ import annotations

import math

import numpy as np

from lbrx.base import system
from lbrx.engine.arrays import Floats, Values, floats, is_bf16, recorder_of, row_vector
from lbrx.engine.device import CPU, Linear, chosen, device, device_for
from lbrx.errors import ShapeError
from lbrx.settings import settings
from lbrx.tensors.tensor import Tensor


def linear(x: Values, weight: Tensor, bias: Values | None = None) -> Floats:
    """Multiply x [..., k] by a transposed weight [m, k] of any dtype or quantization and add a bias: [..., m].

    f32 weights are multiplied in place; others are decoded tile by tile, for BLAS or `lbrx.devices.cpu.ops.gemm_f32`.
    If the processor supports it, bf16 times bf16 uses `lbrx.devices.cpu.ops.gemm_bf16`. The error of a result is at
    most k 2**-23 of the sum of the magnitudes of its products. Up to four vectors use `lbrx.devices.cpu.ops.gemv`. With
    weights that are quantized as in GGUF or MLX or to int8, int4 and int2, and on x86 any number of vectors, products
    are sums of integers: `lbrx.devices.cpu.ops.codec_products`.

    >>> import lbrx
    >>> weight = lbrx.tensor(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)).to("bf16").realize()
    >>> linear(np.array([[1.0, 1.0]], np.float32), weight)
    array([[ 3.,  7., 11.]], dtype=float32)
    """
    values = x if is_bf16(x) and is_bf16(weight) else floats(x)
    if weight.ndim != 2 or values.ndim == 0 or values.shape[-1] != weight.shape[1]:
        name = f" {weight.name!r}" if weight.name else ""
        raise ShapeError(
            f"linear: activations of shape {values.shape} do not match the weight{name} of shape {weight.shape}; "
            "expected [..., k] and [m, k]"
        )
    rows, columns = weight.shape
    vectors = values
    if values.ndim != 2:
        vectors = values.reshape(-1, columns) if columns else np.empty((math.prod(values.shape[:-1]), 0), np.float32)
    name = settings.device if vectors.size and rows else CPU
    if recorder_of(vectors) is not None:
        target = device_for(vectors)
    else:
        target = device(CPU) if name == CPU else chosen(name, Linear(weight.type_name))
    with system.guarded_reads():
        out = target.linear(vectors, weight.encoded())
    if bias is not None:
        out += row_vector(bias, rows, "the bias of linear")
    return out if values.ndim == 2 else out.reshape(*values.shape[:-1], rows)
