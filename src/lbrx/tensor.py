"""Tensor: an expression with a name.

Operators build expressions and cost nothing; values are computed, in fused streaming passes, when they are asked
for: ``numpy()``, ``float()``, ``lbrx.evaluate`` or ``lbrx.save``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx import views
from lbrx.dtypes import DType, dtype
from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.expr import (
    Blocks,
    Counter,
    Expr,
    Kth,
    KthSearch,
    Rank,
    Reduce,
    Scalar,
    Source,
    apply,
    cast,
    common_dtype,
    constant,
)
from lbrx.quantization import QuantizationInfo
from lbrx.quants.encoded import blocks_in_memory, encoded
from lbrx.quants.integers import DEFAULT_GROUP_SIZE, SCHEMES, IntegerCoding, code_integers
from lbrx.quants.quant import quant
from lbrx.shape import Index, Layout, Shape, broadcast_shapes, checked_shape, normalize_axis
from lbrx.storage import CpuStorage, Storage
from lbrx.streams import stream_key


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """What is known of a tensor besides its values."""

    name: str | None = None
    quantization: QuantizationInfo | None = None
    extra: dict[str, Any] = field(default_factory=dict)


_NO_METADATA = TensorMetadata()


class Tensor:
    """A tensor that has not been computed yet, or the elements of a file or an array.

    >>> import numpy as np, lbrx
    >>> a = lbrx.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> float((a * 2 + 1).sum())
    36.0
    >>> a[1:, ::2].numpy()
    array([[3., 5.]], dtype=float32)
    """

    __slots__ = ("expr", "metadata")
    __array_priority__ = 1000  # NumPy leaves mixed arithmetic to us

    def __init__(self, expr: Expr, metadata: TensorMetadata = _NO_METADATA) -> None:
        self.expr = expr
        self.metadata = metadata

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.expr.shape

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def ndim(self) -> int:
        return len(self.expr.shape)

    @property
    def size(self) -> int:
        return math.prod(self.expr.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, or of the quantized blocks."""
        if isinstance(self.expr, Blocks):
            return self.expr.storage.nbytes
        return self.expr.dtype.nbytes(self.size)

    @property
    def name(self) -> str | None:
        return self.metadata.name

    @property
    def quantization(self) -> QuantizationInfo | None:
        return self.metadata.quantization

    @property
    def type_name(self) -> str:
        """The dtype's name, or that of the quantization."""
        return self.expr.quant if isinstance(self.expr, Blocks) else self.expr.dtype.name

    @property
    def storage(self) -> Storage | None:
        """The storage behind it, if it is one and not an expression."""
        return self.expr.storage if isinstance(self.expr, (Source, Blocks)) else None

    @property
    def is_view(self) -> bool:
        """Whether its elements are those of a storage, seen through a layout: nothing to compute."""
        return isinstance(self.expr, Source)

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a tensor without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        state = "" if isinstance(self.expr, (Source, Blocks)) else ", not computed yet"
        return f"Tensor({name}{self.type_name}, shape={self.shape}{state})"

    # -- values ---------------------------------------------------------------------------------------------------

    def numpy(self) -> npt.NDArray[Any]:
        """The values as an array: without a copy where a mapped or in-memory tensor is aligned and contiguous.

        Packed i4 and i2 come unpacked as ml_dtypes arrays, quantized tensors as the f32 values that they stand for.
        """
        view = self._array_view()
        if view is not None:
            return view
        if self.dtype.is_packed:
            return Tensor(cast(self.expr, dtype("i8"))).numpy().astype(self.dtype.numpy)
        from lbrx.stages import evaluate_exprs

        result = evaluate_exprs([self.expr])[0]
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
                raise DTypeError(f"a {self.dtype} tensor cannot be seen as {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule of the values; bf16 and 8-bit floats travel where NumPy can name them."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self) -> float | int | bool:
        """The single value of a tensor of one element."""
        if self.size != 1:
            raise ShapeError(f"a tensor of shape {self.shape} is not a single value")
        value: float | int | bool = self.numpy().reshape(()).astype(self.dtype.compute.numpy).item()
        return value

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def realize(self) -> Tensor:
        """The same tensor with its values in memory."""
        if isinstance(self.expr, Blocks):
            return Tensor(blocks_in_memory(self.expr), self.metadata)
        if isinstance(self.expr, Source):
            return self
        from lbrx.stages import evaluate_exprs

        result = evaluate_exprs([self.expr])[0]
        data = np.asarray(result).astype(self.dtype.numpy) if not self.shape else result
        source = Source(CpuStorage.from_array(np.ascontiguousarray(data)), self.dtype, Layout.contiguous(self.shape))
        return Tensor(source, self.metadata)

    def raw(self) -> Tensor:
        """The bytes of a stored or quantized tensor as a u8 vector."""
        expr = self.expr
        if isinstance(expr, Blocks):
            return Tensor(Source(expr.storage, dtype("u8"), Layout.contiguous((expr.storage.nbytes,))), self.metadata)
        if isinstance(expr, Source) and expr.rows is None and expr.layout.is_contiguous and not expr.dtype.is_packed:
            item = expr.dtype.itemsize
            layout = Layout.contiguous((self.nbytes,), expr.layout.offset * item)
            return Tensor(Source(expr.storage, dtype("u8"), layout), self.metadata)
        raise DTypeError("only a stored, contiguous tensor has raw bytes; call realize() first")

    # -- views ----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Index) -> Tensor:
        """Basic indexing (integers, slices, None, Ellipsis): a view."""
        return Tensor(views.sliced(self.expr, index))

    def transpose(self, *axes: int) -> Tensor:
        return Tensor(views.transposed(self.expr, axes or tuple(reversed(range(self.ndim)))))

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return Tensor(views.reshaped(self.expr, [int(size) for size in sizes]))  # type: ignore[arg-type]

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return Tensor(views.broadcast(self.expr, checked_shape(shape)))

    def rows(self, numbers: Sequence[int] | npt.NDArray[Any]) -> Tensor:
        """The rows (axis 0) with these numbers: a view that gathers while it is read."""
        return Tensor(views.gathered(self.expr, np.asarray(numbers, dtype=np.int64)))

    # -- element-wise ---------------------------------------------------------------------------------------------

    def to(self, kind: DType | str) -> Tensor:
        """The values in another dtype: nearest even for floats; integers from floats truncate and clip."""
        return Tensor(cast(self.expr, dtype(kind)), TensorMetadata(name=self.name))

    def quantize(
        self,
        scheme: str,
        imatrix: npt.ArrayLike | None = None,
        *,
        group_size: int = DEFAULT_GROUP_SIZE,
        symmetric: bool = True,
    ) -> Tensor:
        """The values as a quantization such as ``"q4_k"`` or ``"int4"``: made while they are saved, or by realize().

        ``imatrix`` gives the importance of each column (or, for a stack of matrices, of each column of each), for
        types that take one. ``group_size`` and ``symmetric`` are for ``"int8"``, ``"int4"`` and ``"int2"``.

        >>> import numpy as np, lbrx
        >>> values = np.linspace(-1, 1, 64, dtype=np.float32)
        >>> quantized = lbrx.tensor(values).quantize("q8_0")
        >>> quantized
        Tensor(q8_0, shape=(64,))
        >>> bool(abs(quantized - values).max() < 0.005)
        True
        """
        if scheme in SCHEMES:
            if imatrix is not None:
                raise UsageError(f"{scheme} takes no importance matrix")
            return integer_tensor(code_integers(self.expr, scheme, group_size, symmetric), self.name)
        kind = quant(scheme)
        weights = None if imatrix is None else np.asarray(imatrix, np.float32)
        info = QuantizationInfo(scheme=kind.name, bits=kind.bits, group_size=kind.block_elements)
        return Tensor(encoded(self.expr, kind, weights), TensorMetadata(name=self.name, quantization=info))

    def dequantize(self) -> Tensor:
        """The f32 values of a quantized tensor, decoded piece by piece when needed; any other tensor as it is."""
        if not isinstance(self.expr, Blocks):
            return self
        return Tensor(self.expr.values, TensorMetadata(name=self.name, extra=self.metadata.extra))

    def __add__(self, other: Any) -> Tensor:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _binary("div", other, self)

    def __neg__(self) -> Tensor:
        return Tensor(apply("neg", self.expr))

    def __abs__(self) -> Tensor:
        return Tensor(apply("abs", self.expr))

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _binary("ne", self, other)

    def __lt__(self, other: Any) -> Tensor:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Tensor:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _binary("ge", self, other)

    def __and__(self, other: Any) -> Tensor:
        return _binary("and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _binary("and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return _binary("or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _binary("or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _binary("xor", self, other)

    def __invert__(self) -> Tensor:
        return Tensor(apply("not", self.expr))

    __hash__ = object.__hash__

    def abs(self) -> Tensor:
        return abs(self)

    def sign(self) -> Tensor:
        return Tensor(apply("sign", self.expr))

    def sqrt(self) -> Tensor:
        return Tensor(apply("sqrt", self.expr))

    def exp(self) -> Tensor:
        return Tensor(apply("exp", self.expr))

    def log(self) -> Tensor:
        return Tensor(apply("log", self.expr))

    def sin(self) -> Tensor:
        return Tensor(apply("sin", self.expr))

    def cos(self) -> Tensor:
        return Tensor(apply("cos", self.expr))

    def acos(self) -> Tensor:
        return Tensor(apply("acos", self.expr))

    def floor(self) -> Tensor:
        return Tensor(apply("floor", self.expr))

    def round(self) -> Tensor:
        """To the nearest integer, halves to even."""
        return Tensor(apply("round", self.expr))

    def isnan(self) -> Tensor:
        return Tensor(apply("isnan", self.expr))

    def minimum(self, other: Any) -> Tensor:
        return _binary("minimum", self, other)

    def maximum(self, other: Any) -> Tensor:
        return _binary("maximum", self, other)

    def clip(self, low: Any = None, high: Any = None) -> Tensor:
        """Values below ``low`` become it, values above ``high`` become that; NaN stays."""
        result = self if low is None else self.maximum(low)
        return result if high is None else result.minimum(high)

    # -- reductions -----------------------------------------------------------------------------------------------

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Whole tensor (axis None) or along the last axis. Floats accumulate in f64, integers in i64."""
        return self._reduce("sum", (self.expr,), axis, keepdims)

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        total = self._reduce("sum", (self.expr,), axis, keepdims)
        return total / (self.size if axis is None else self.shape[-1])

    def min(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return self._reduce("min", (self.expr,), axis, keepdims)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return self._reduce("max", (self.expr,), axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element; NaN counts as largest, as in NumPy."""
        return self._reduce("argmax", (self.expr,), axis, keepdims)

    def norm(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The Euclidean length."""
        length = self._reduce("sumsq", (self.expr,), axis, keepdims).sqrt()
        return length.to(self.dtype.compute) if axis is not None and self.dtype.is_float else length

    def dot(self, other: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The sum of products with a tensor that broadcasts to the same shape."""
        return self._reduce("dot", (self.expr, _expr(other)), axis, keepdims)

    def _reduce(self, op: str, args: tuple[Expr, ...], axis: int | None, keepdims: bool) -> Tensor:
        if axis is not None and normalize_axis(axis, self.ndim) != self.ndim - 1:
            raise ShapeError(f"reductions run over the whole tensor or the last axis, not axis {axis}; transpose first")
        if axis is None and keepdims:
            raise ShapeError("keepdims goes with axis=-1")
        shape = broadcast_shapes(*(arg.shape for arg in args))
        if axis is None:
            return Tensor(Reduce(op, args, last_axis=False))
        common = common_dtype(args)
        args = tuple(arg if arg.shape == shape else views.broadcast(cast(arg, common), shape) for arg in args)
        if len(shape) == 1 and not keepdims:
            return Tensor(Reduce(op, args, last_axis=True, keepdims=True))[0]
        reduced = Tensor(Reduce(op, args, last_axis=True, keepdims=keepdims))
        return reduced if shape[-1] else full(reduced.shape, 0, reduced.dtype)

    # -- order ----------------------------------------------------------------------------------------------------

    def kth_largest(self, k: int) -> Tensor:
        """The k-th largest element (k from 1), exact, without sorting. NaN counts as largest."""
        return Tensor(Kth(self._search(k), "value"))

    def top_k_mask(self, k: int) -> Tensor:
        """True for exactly k elements, the largest; among equals those with the lowest index."""
        if k == 0:
            return Tensor(views.broadcast(Scalar(False), self.shape))
        search = self._search(k)
        if not self.shape:
            return Tensor(Scalar(True))
        search.needs_index = True
        keys, place = Tensor(apply("order_key", self.expr)), Tensor(views.counter("index", Layout.contiguous(self.shape)))
        key, last = Tensor(Kth(search, "key")), Tensor(Kth(search, "index"))
        return (keys > key) | ((keys == key) & (place <= last))

    def _search(self, k: int) -> KthSearch:
        if not 1 <= k <= self.size:
            raise ShapeError(f"k is {k}, but a tensor of shape {self.shape} has {self.size} elements")
        return KthSearch(views.broadcast(self.expr, (1,)) if not self.shape else self.expr, k)

    def rank(self, descending: bool = False) -> Tensor:
        """The place (from 0) of each element among its row, i.e. along the last axis; equals keep their order."""
        return Tensor(Rank(self.expr, descending))


def integer_tensor(coding: IntegerCoding, name: str | None) -> Tensor:
    """A tensor coded as integers, with its scales and zero points as metadata."""
    info = QuantizationInfo(
        scheme=coding.blocks.quant,
        bits=coding.bits_per_value,
        group_size=coding.group_size,
        scales=Tensor(coding.scales),
        zero_points=None if coding.zero_points is None else Tensor(coding.zero_points),
    )
    return Tensor(coding.blocks, TensorMetadata(name=name, quantization=info))


def _expr(value: Any) -> Expr:
    if isinstance(value, Tensor):
        return value.expr
    if isinstance(value, np.ndarray):
        return tensor(value).expr
    return constant(value)


def _binary(op: str, left: Any, right: Any) -> Tensor:
    return Tensor(apply(op, _expr(left), _expr(right)))


def tensor(values: npt.ArrayLike, kind: DType | str | None = None, name: str | None = None) -> Tensor:
    """A tensor over an array (its memory is shared where it is contiguous) or over numbers.

    >>> tensor([1, 2, 3], "f32").dtype
    DType(f32)
    """
    array = np.asarray(values)
    if array.dtype.kind in "OUSV" and array.dtype.names is None and array.dtype.kind != "V":
        raise DTypeError(f"an array of {array.dtype} has no lbrx dtype")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    own = dtype(array.dtype)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if own.is_packed:
        wide = Tensor(
            Source(CpuStorage.from_array(contiguous.astype(np.int8)), dtype("i8"), Layout.contiguous(array.shape))
        )
        made = wide.to(own).realize()
    else:
        made = Tensor(Source(CpuStorage.from_array(contiguous), own, Layout.contiguous(array.shape)))
    result = made if kind is None or dtype(kind) is own else made.to(kind).realize()
    return Tensor(result.expr, TensorMetadata(name=name))


def evaluate(*tensors: Tensor) -> tuple[Any, ...]:
    """The values of several tensors, sharing passes over the data: arrays, or NumPy scalars without axes.

    >>> import numpy as np, lbrx
    >>> a = lbrx.tensor(np.arange(4, dtype=np.float32))
    >>> [float(value) for value in evaluate(a.sum(), a.max(), a.dot(a))]
    [6.0, 3.0, 14.0]
    """
    from lbrx.stages import evaluate_exprs

    pending = [tensor for tensor in tensors if tensor._array_view() is None and not tensor.dtype.is_packed]
    computed = dict(zip(map(id, pending), evaluate_exprs([tensor.expr for tensor in pending]), strict=True))
    return tuple(computed[id(tensor)] if id(tensor) in computed else tensor.numpy() for tensor in tensors)


def where(condition: Any, chosen: Any, otherwise: Any) -> Tensor:
    """Element-wise choice."""
    return Tensor(apply("where", _expr(condition), _expr(chosen), _expr(otherwise)))


def concat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one dtype joined along an axis. Along axis 0 a join is streamed; along others it is stored first."""
    if not parts:
        raise ShapeError("nothing to join: at least one tensor is needed")
    return Tensor(views.joined([part.expr for part in parts], normalize_axis(axis, parts[0].ndim)))


def arange(count: int) -> Tensor:
    """0, 1, ... as i64, made while it is read."""
    return Tensor(Counter("index", Layout.contiguous(checked_shape((count,)))))


def full(shape: Sequence[int], value: float | int | bool, kind: DType | str) -> Tensor:
    """A constant of a shape; takes no memory."""
    return Tensor(views.broadcast(cast(Scalar(value), dtype(kind)), checked_shape(shape)))


def uniform(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Uniform f32 in [0, 1): a function of seed, stream name and element index alone."""
    return Tensor(views.counter("uniform", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))


def normal(shape: Sequence[int], seed: int, stream: str = "") -> Tensor:
    """Standard normal f32: a function of seed, stream name and element index alone."""
    return Tensor(views.counter("normal", Layout.contiguous(checked_shape(shape)), stream_key(seed, stream)))
