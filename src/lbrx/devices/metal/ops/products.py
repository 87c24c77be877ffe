"""Products of tensors on the GPU, for `Tensor @` and models. Asynchronous."""

from __future__ import annotations

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.context.storage import BufferWindow, MetalStorage
from lbrx.devices.metal.ops import linear as linear_kernels
from lbrx.devices.metal.ops import matmul as matmul_kernels
from lbrx.devices.metal.ops.arrays import FLOAT_NUMBERS, DeviceArray
from lbrx.devices.metal.ops.weights import device_array, device_weight
from lbrx.engine.arrays import Values
from lbrx.tensors.dtype import dtype
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import Storage
from lbrx.tensors.tensor import Tensor, tensor


def matmul(a: Values, b: Values, transpose_b: bool) -> Storage:
    """a [..., n, k] times b [..., k, m] in f32, on the device; leading axes broadcast, vectors are rows or columns.

    A transposed view of stored elements is read as it lies.
    """
    context = metal_context()
    rows, columns = (values if isinstance(values, Tensor) else tensor(values) for values in (a, b))
    if rows.ndim == 1:
        rows = rows.reshape(1, rows.size)
    if columns.ndim == 1:
        columns = columns.reshape(columns.size, 1)
    elif transpose_b:
        columns = columns.transpose(*range(columns.ndim - 2), -1, -2)
    left, transpose_a = _operand(context, rows)
    right, turned = _operand(context, columns)
    product = matmul_kernels.matmul(context, left, right, transpose_a=transpose_a, transpose_b=turned, out_dtype="f32")
    return _storage(context, product)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., k] times a weight [m, k], transposed, in f32; blocks of a quantized weight are multiplied as they are."""
    context = metal_context()
    product = linear_kernels.linear(context, _numbers(context, x), device_weight(context, weight), out_dtype="f32")
    return as_tensor(context, product)


def as_tensor(context: MetalContext, array: DeviceArray) -> Tensor:
    """What a kernel made, as a tensor on the device."""
    return Tensor(Source(_storage(context, array), dtype(array.dtype), Layout.contiguous(array.shape)))


def _storage(context: MetalContext, array: DeviceArray) -> MetalStorage:
    window = BufferWindow(0, array.nbytes, array.buffer, array.offset)
    return MetalStorage(context, (window,), array.nbytes, array.owner)


def _operand(context: MetalContext, tensor: Tensor) -> tuple[DeviceArray, bool]:
    """The elements, and whether they are those of the transposed matrix."""
    expr = tensor.expr
    if tensor.ndim == 2 and isinstance(expr, Source) and expr.rows is None and not expr.layout.is_contiguous:
        flipped = tensor.T
        assert isinstance(flipped.expr, Source)
        if flipped.expr.layout.is_contiguous:
            return _numbers(context, flipped), True
    return _numbers(context, tensor), False


def _numbers(context: MetalContext, tensor: Tensor) -> DeviceArray:
    """Elements in a type that kernels multiply, in C order; expressions are computed, other types become f32."""
    values = tensor.dequantize()
    if values.dtype.name not in FLOAT_NUMBERS:
        values = values.to("f32")
    return device_array(context, values if values.is_view else values.to_device("metal"))
