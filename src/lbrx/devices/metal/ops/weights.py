"""Tensors of models as kernels take them: bytes of mapped files where they are, others copied once."""

from __future__ import annotations

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.storage import MetalStorage
from lbrx.devices.metal.ops.arrays import (
    BINDING_ALIGNMENT,
    CODING_NUMBERS,
    ELEMENT_TYPES,
    DeviceArray,
    DeviceWeight,
    Shape,
    upload,
)
from lbrx.devices.metal.ops.linear import plain_weight
from lbrx.errors import DTypeError, ShapeError
from lbrx.tensors.codecs.mlx import MlxMode, MlxWeight
from lbrx.tensors.coded import Blocks
from lbrx.tensors.expr import Source
from lbrx.tensors.storage import Storage
from lbrx.tensors.tensor import Tensor


def device_array(context: MetalContext, tensor: Tensor) -> DeviceArray:
    """A tensor of plain numbers; what lies in a mapped file, or on the device already, is not copied.

    >>> import lbrx, numpy as np
    >>> context = MetalContext.open("emulated")
    >>> device_array(context, lbrx.tensor(np.zeros((2, 3), np.float16))).shape
    (2, 3)
    """
    source = tensor.expr
    if isinstance(source, Source) and source.rows is None and source.layout.is_contiguous:
        name = source.dtype.name
        if name in ELEMENT_TYPES:
            return _bytes_of(context, source.storage, source.dtype.nbytes(source.layout.offset), name, tensor.shape)
    return upload(context, tensor.numpy())


def device_weight(context: MetalContext, weight: Tensor) -> DeviceWeight:
    """A tensor [outputs, inputs] of plain numbers or of blocks; blocks stay blocks.

    >>> import lbrx, numpy as np
    >>> context = MetalContext.open("emulated")
    >>> coded = lbrx.tensor(np.zeros((2, 32), np.float32)).quantize("q4_0").realize()
    >>> device_weight(context, coded).values.nbytes
    36
    """
    if weight.ndim != 2:
        raise ShapeError(f"a weight has shape {weight.shape}; expected two axes, outputs and inputs")
    blocks = weight.encoded().expr
    if not isinstance(blocks, Blocks):
        return plain_weight(device_array(context, weight))
    coding, storage = blocks.codec, blocks.storage
    if coding not in CODING_NUMBERS:
        raise DTypeError(f"kernels have no coding {coding!r}; expected one of {', '.join(CODING_NUMBERS)}")
    values = _bytes_of(context, storage, 0, "u8", (storage.nbytes,))
    return DeviceWeight(coding, (weight.shape[0], weight.shape[1]), values)


def device_mlx_weight(context: MetalContext, weight: MlxWeight, mode: MlxMode) -> DeviceWeight:
    """A weight in MLX's affine coding of 4 or 8 bits."""
    if mode.mode != "affine" or f"affine{mode.bits}" not in CODING_NUMBERS or weight.biases is None:
        raise DTypeError(f"kernels have no coding {mode.mode} of {mode.bits} bits; expected affine of 4 or 8 bits")
    words = weight.weight.encoded().expr
    if len(weight.scales.shape) != 2 or not isinstance(words, (Blocks, Source)):
        raise ShapeError(f"a weight has scales of shape {weight.scales.shape}; expected stored codes with two axes")
    rows, groups = weight.scales.shape
    values = _bytes_of(context, words.storage, 0, "u8", (words.storage.nbytes,))
    scales, biases = device_array(context, weight.scales), device_array(context, weight.biases)
    shape = (rows, groups * mode.group_size)
    return DeviceWeight(f"affine{mode.bits}", shape, values, scales, biases, mode.group_size)


def _bytes_of(context: MetalContext, storage: Storage, start: int, dtype: str, shape: Shape) -> DeviceArray:
    """Elements from a byte of a storage on."""
    on_device = storage
    if not isinstance(storage, MetalStorage) or storage.context.driver is not context.driver:
        on_device = MetalStorage.from_storage(context, storage)
    assert isinstance(on_device, MetalStorage)
    nbytes = int(ELEMENT_TYPES[dtype].itemsize)
    for extent in shape:
        nbytes *= extent
    binding = on_device.binding(start, start + nbytes)
    if binding.offset % BINDING_ALIGNMENT:
        contents = storage.read_at(start, nbytes)
        return upload(context, contents.view(ELEMENT_TYPES[dtype]).reshape(shape))
    return DeviceArray(binding.buffer, dtype, shape, binding.offset, on_device)
