"""Weights of models as kernels take them: copied into buffers as they are in their files."""

from __future__ import annotations

import numpy as np

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.kernels.arrays import CODING_NUMBERS, DeviceArray, DeviceWeight, upload
from lbrx.devices.metal.kernels.linear import plain_weight
from lbrx.errors import DTypeError, ShapeError
from lbrx.expr import Blocks
from lbrx.quants.mlx import MlxMode, MlxWeight
from lbrx.storage import Storage
from lbrx.tensor import Tensor


def upload_weight(context: MetalContext, weight: Tensor) -> DeviceWeight:
    """A tensor [outputs, inputs] of plain numbers or of blocks; blocks stay blocks.

    >>> import lbrx
    >>> context = MetalContext.open("emulated")
    >>> coded = lbrx.tensor(np.zeros((2, 32), np.float32)).quantize("q4_0").realize()
    >>> upload_weight(context, coded).values.nbytes
    36
    """
    if weight.ndim != 2:
        raise ShapeError(f"a weight has shape {weight.shape}; expected two axes, outputs and inputs")
    if not isinstance(weight.expr, Blocks):
        return plain_weight(upload(context, weight.numpy()))
    coding = weight.expr.quant
    if coding not in CODING_NUMBERS:
        raise DTypeError(f"kernels have no coding {coding!r}; expected one of {', '.join(CODING_NUMBERS)}")
    return DeviceWeight(coding, (weight.shape[0], weight.shape[1]), _upload_bytes(context, weight.expr.storage))


def upload_mlx_weight(context: MetalContext, weight: MlxWeight, mode: MlxMode) -> DeviceWeight:
    """A weight in MLX's affine coding of 4 or 8 bits."""
    if mode.mode != "affine" or f"affine{mode.bits}" not in CODING_NUMBERS or weight.biases is None:
        raise DTypeError(f"kernels have no coding {mode.mode} of {mode.bits} bits; expected affine of 4 or 8 bits")
    if len(weight.scales.shape) != 2:
        raise ShapeError(f"a weight has scales of shape {weight.scales.shape}; expected two axes")
    words = weight.weight.expr
    if not isinstance(words, Blocks):
        raise DTypeError("the codes of a weight of MLX have to be words as its files store them")
    rows, groups = weight.scales.shape
    scales, biases = (upload(context, part.numpy()) for part in (weight.scales, weight.biases))
    values = _upload_bytes(context, words.storage)
    return DeviceWeight(f"affine{mode.bits}", (rows, groups * mode.group_size), values, scales, biases, mode.group_size)


def _upload_bytes(context: MetalContext, storage: Storage) -> DeviceArray:
    buffer = context.get_buffer(storage.nbytes)
    storage.read_into(0, buffer.view())
    return DeviceArray(buffer, "u8", (storage.nbytes,))
