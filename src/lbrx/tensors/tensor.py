"""Tensor: an expression with a name.

Operators build lazy expressions. Values are computed in fused streaming passes on request: by ``numpy()``, ``float()``,
``lbrx.evaluate`` or ``lbrx.save``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.tensors import views
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import (
    DEFAULT_GROUP_SIZE,
    SCHEMES,
    Blocks,
    Encode,
    Encoding,
    QuantizationInfo,
    codec_info,
    stored_expr,
)
from lbrx.tensors.dtype import DTypeLike
from lbrx.tensors.dtype import dtype as dtype_of
from lbrx.tensors.expr import Coded, Expr, MatMul, Reduce, Source, cast
from lbrx.tensors.functions import function
from lbrx.tensors.operators import array_expr
from lbrx.tensors.properties import Properties
from lbrx.tensors.properties import TensorMetadata as TensorMetadata
from lbrx.tensors.shape import Layout, checked_shape
from lbrx.tensors.storage import CpuStorage, Storage

_NO_METADATA = TensorMetadata()


class Tensor(Properties):
    """A lazy expression, or the elements of a file or an array.

    >>> import numpy as np, lbrx
    >>> a = lbrx.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> float((a * 2 + 1).sum())
    36.0
    >>> a[1:, ::2].numpy()
    array([[3., 5.]], dtype=float32)
    """

    __slots__ = ("expr", "metadata")

    def __init__(self, expr: Expr, metadata: TensorMetadata = _NO_METADATA) -> None:
        self.expr = expr
        self.metadata = metadata

    @classmethod
    def from_storage(
        cls, storage: Storage, dtype: DTypeLike, shape: Sequence[int] | int, offset: int = 0, name: str | None = None
    ) -> Tensor:
        """Return the elements of a storage from byte ``offset`` on, without a copy.

        ``dtype`` is a dtype or a quantization of GGUF, such as ``"q4_0"``. The elements are in C order.

        >>> import numpy as np, lbrx
        >>> storage = lbrx.CpuStorage.from_array(np.arange(6, dtype=np.float32))
        >>> lbrx.Tensor.from_storage(storage, "f32", (2, 2), offset=8).tolist()
        [[2.0, 3.0], [4.0, 5.0]]
        """
        if not hasattr(storage, "read_into"):
            raise UsageError(f"expected a storage, not a {type(storage).__name__}; lbrx.tensor() takes arrays")
        expr = stored_expr(storage, dtype, checked_shape(shape), offset)
        info = None if isinstance(expr, Source) else codec_info(codec(expr.codec))
        return cls(expr, TensorMetadata(name, info))

    def _made(self, expr: Expr) -> Tensor:
        return Tensor(expr)

    def __repr__(self) -> str:
        from lbrx.tensors.display import source_text

        name = f"{self.name!r}, " if self.name else ""
        where = f"device={self.device}, {source_text(self.expr)}"
        return f"Tensor({name}{self.type_name}, shape={self.shape}, {where})"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a line, and a histogram of a stored tensor."""
        from lbrx.tensors.display import tensor_html

        return tensor_html(self)

    # -- values ---------------------------------------------------------------------------------------------------

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values as an array, without a copy if a mapped or in-memory tensor is aligned and contiguous.

        Packed i4 and i2 are unpacked to ml_dtypes arrays. Quantized tensors are decoded to f32.

        >>> import lbrx
        >>> (lbrx.tensor([1.0, 2.0]) * 2).numpy()
        array([2., 4.])
        """
        view = self.encoded()._array_view()
        if view is not None:
            return view
        if self.dtype.is_packed:
            return Tensor(cast(self.expr, dtype_of("i8"))).numpy().astype(self.dtype.numpy)
        result = function("evaluate")([self.expr])[0]
        return result if self.shape else np.asarray(result).astype(self.dtype.numpy)

    def _array_view(self) -> npt.NDArray[Any] | None:
        expr = self.expr
        if not isinstance(expr, Source) or expr.rows is not None or expr.dtype.is_packed or 0 in expr.shape:
            return None
        address = expr.storage.address
        if address is None or address % expr.dtype.numpy.alignment:
            return None
        item = expr.dtype.itemsize
        low, high = expr.layout.span()
        window = expr.storage.read_at(low * item, (high - low) * item)
        strides = tuple(stride * item for stride in expr.layout.strides)
        start = (expr.layout.offset - low) * item
        array: npt.NDArray[Any] = np.ndarray(expr.shape, expr.dtype.numpy, window.data, start, strides)
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise DTypeError(f"a {self.dtype} tensor cannot be viewed as {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Handle NumPy ufuncs such as ``np.exp(t)``: return a lazy tensor or raise TypeError."""
        from lbrx.tensors.numpy_protocol import call_ufunc

        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Handle NumPy functions such as ``np.sum(t)``: return a lazy tensor or raise TypeError."""
        from lbrx.tensors.numpy_protocol import call_function

        return call_function(function, args, options)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule for ``from_dlpack`` of other libraries. bf16 and 8-bit floats are copied."""
        if self.dtype.name in ("bf16", "f8_e4m3", "f8_e5m2"):
            from lbrx.tensors.dlpack import capsule

            return capsule(self.numpy().view(self.dtype.carrier), self.dtype.name)
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self) -> float | int | bool:
        """Return the value of a tensor with one element.

        >>> import lbrx
        >>> lbrx.tensor([1.0, 2.0]).sum().item()
        3.0
        """
        if not self.shape and type(self.expr) is Reduce:
            number: float | int = function("evaluate")([self.expr])[0].item()
            return number
        if self.size != 1:
            raise ShapeError(f"a tensor of shape {self.shape} is not a single value; lbrx.where chooses by element")
        computes_in = self.dtype.compute
        whole = self.numpy()
        value: float | int | bool = (whole if computes_in is self.dtype else whole.astype(computes_in.numpy)).item()
        return value

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers, or one number.

        >>> import lbrx
        >>> lbrx.tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        computes_in = self.dtype.compute
        values = self.numpy()
        return (values if computes_in is self.dtype else values.astype(computes_in.numpy)).tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, specification: str) -> str:
        """Format a tensor of one element as its value: ``f"{t.sum():.3f}"``."""
        return format(self.item(), specification) if specification else str(self)

    def __round__(self, digits: int | None = None) -> Any:
        """Round the value of a tensor with one element like a number. Other tensors use ``round(decimals)``."""
        return round(self.item(), digits) if self.size == 1 else self.round(digits or 0)

    def realize(self) -> Tensor:
        """Compute the values and return the tensor in memory.

        >>> import lbrx
        >>> (lbrx.tensor([1.0]) + 1).realize().is_view
        True
        """
        if isinstance(self.encoded().expr, (Source, Blocks)):
            return self
        device = self.device
        if device != "cpu":
            return self.to_device(device)
        result = function("evaluate")([self.expr])[0]
        data = np.asarray(result).astype(self.dtype.numpy) if not self.shape else result
        source = Source(CpuStorage.from_array(np.ascontiguousarray(data)), self.dtype, Layout.contiguous(self.shape))
        return Tensor(source, self.metadata)

    def to_device(self, device: str) -> Tensor:
        """Return the tensor on a device of `lbrx.registry.DEVICES`. An expression is computed there.

        A device that shares memory with the CPU does not copy the bytes of a mapped file. Operations on a tensor run on
        its device. A GPU computes asynchronously; only reading values waits.

        >>> import lbrx
        >>> (lbrx.tensor([1.0]) + 1).to_device("numpy").tolist()
        [2.0]
        """
        moved = Tensor(function("moved")(self.expr, device), self.metadata)
        return Tensor(moved.expr, replace(self.metadata, quantization=moved.quantization))

    def raw(self) -> Tensor:
        """Return the bytes of a stored or quantized tensor as a u8 vector.

        >>> import lbrx
        >>> lbrx.tensor([1.0], "f16").raw().tolist()
        [0, 60]
        """
        expr = self.encoded().expr
        if isinstance(expr, Blocks):
            return Tensor(expr.stored, self.metadata)
        if isinstance(expr, Source) and expr.rows is None and expr.layout.is_contiguous:
            first, within = divmod(expr.layout.offset * expr.dtype.bits, 8)
            if not within:
                layout = Layout.contiguous((self.nbytes,), first)
                return Tensor(Source(expr.storage, dtype_of("u8"), layout), self.metadata)
        raise DTypeError("only a stored, contiguous tensor has raw bytes; call realize() first")

    # -- products -------------------------------------------------------------------------------------------------

    def __matmul__(self, other: Tensor | npt.NDArray[Any]) -> Tensor:
        """Return the matrix product in f32. Leading axes broadcast as in NumPy.

        >>> (tensor([[1.0, 2.0]], "bf16") @ tensor([[3.0], [4.0]], "f16")).numpy()
        array([[11.]], dtype=float32)
        """
        return Tensor(MatMul(self.expr, _factor(other)))

    def __rmatmul__(self, other: npt.NDArray[Any]) -> Tensor:
        return Tensor(MatMul(_factor(other), self.expr))

    # -- element-wise ---------------------------------------------------------------------------------------------

    def to(self, dtype: DTypeLike) -> Tensor:
        """Convert to another dtype: nearest even for floats; floats to integers truncate and clip.

        >>> import lbrx
        >>> lbrx.tensor([1.7, -300.0]).to("i8").tolist()
        [1, -128]
        """
        return Tensor(cast(self.expr, dtype_of(dtype)), TensorMetadata(name=self.name))

    def astype(self, dtype: DTypeLike) -> Tensor:
        """NumPy's name for ``to``.

        >>> import lbrx
        >>> lbrx.tensor([1.7]).astype("i8").tolist()
        [1]
        """
        return self.to(dtype)

    def quantize(
        self,
        scheme: str,
        imatrix: npt.ArrayLike | None = None,
        *,
        group_size: int = DEFAULT_GROUP_SIZE,
        symmetric: bool = True,
    ) -> Tensor:
        """Quantize lazily, for example to ``"q4_k"`` or ``"int4"``. Saving or realize() encodes the blocks.

        ``imatrix`` is the importance of each column (or, for a stack of matrices, of each column of each matrix), for
        types that support it. ``group_size`` and ``symmetric`` are for ``"int8"``, ``"int4"`` and ``"int2"``.

        >>> import numpy as np, lbrx
        >>> values = np.linspace(-1, 1, 64, dtype=np.float32)
        >>> quantized = lbrx.tensor(values).quantize("q8_0")
        >>> quantized
        Tensor(q8_0, shape=(64,), device=cpu, not computed yet)
        >>> bool(abs(quantized - values).max() < 0.005)
        True
        """
        if scheme in SCHEMES:
            if imatrix is not None:
                raise UsageError(f"{scheme} does not support an importance matrix")
            from lbrx.tensors.codecs.integers import encoded_integers

            return integer_tensor(encoded_integers(self.expr, scheme, group_size, symmetric), self.name)
        block_codec = codec(scheme)
        weights = None if imatrix is None else np.asarray(imatrix, np.float32)
        metadata = TensorMetadata(self.name, codec_info(block_codec))
        return Tensor(Encode(Encoding(self.expr, block_codec, weights)), metadata)

    def encoded(self) -> Tensor:
        """Return this tensor. If it is quantized, encode its blocks into memory now, so that it happens only once.

        >>> import lbrx
        >>> lbrx.zeros((32,), "f32").quantize("q8_0").encoded().storage.nbytes
        34
        """
        if isinstance(self.expr, Encode):
            self.expr = function("moved")(self.expr, self.device)
        return self

    def dequantize(self) -> Tensor:
        """Return the f32 values of a quantized tensor, decoded lazily, or any other tensor unchanged.

        >>> import lbrx
        >>> lbrx.zeros((32,), "f32").quantize("q8_0").dequantize().dtype
        DType(f32)
        """
        if not isinstance(self.expr, Coded):
            return self
        return Tensor(self.expr.values, TensorMetadata(name=self.name, extra=self.metadata.extra))


def _factor(values: Tensor | npt.ArrayLike) -> Expr:
    """Return an operand of a product. Columns of a transposed matrix stay contiguous."""
    if isinstance(values, Tensor):
        return values.expr
    array = np.asarray(values)
    is_transposed = array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous
    return views.transposed(array_expr(array.T), (1, 0)) if is_transposed else array_expr(array)


def integer_tensor(coded: Blocks | Encode, name: str | None) -> Tensor:
    """Return a tensor encoded as integers, with its scales and zero points as metadata."""
    scales, zero_points = coded.numbers
    coding = coded.encoding.codec if isinstance(coded, Encode) else coded.coding
    assert scales is not None
    assert coding is not None
    group_size = coding.block_elements
    info = QuantizationInfo(
        scheme=coded.codec,
        bits=SCHEMES[coded.codec] + (32 if zero_points is None else 40) / group_size,
        group_size=group_size,
        scales=Tensor(scales),
        zero_points=None if zero_points is None else Tensor(zero_points),
    )
    return Tensor(coded, TensorMetadata(name=name, quantization=info))


def tensor(values: npt.ArrayLike, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
    """Create a tensor from an array (sharing its memory if it is contiguous) or from numbers.

    >>> tensor([1, 2, 3], "f32").dtype
    DType(f32)
    """
    expr = array_expr(np.asarray(values))
    wanted = expr.dtype if dtype is None else dtype_of(dtype)
    return Tensor(Tensor(cast(expr, wanted)).realize().expr, TensorMetadata(name=name))


TensorView = Tensor
"""What slices, transposes and reshapes of a tensor are: a Tensor over the same storage (see `Tensor.is_view`)."""
