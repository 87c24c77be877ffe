"""Expressions: the closed set of node types of a lazy graph.

Leaves are stored elements or elements computed from their position (Source, Counter, Scalar, Stored). Inner nodes are
element-wise (Map), reductions (Reduce, Kth), ranks along rows (Rank), joins (Concat) and products (MatMul). Quantized
tensors are in `lbrx.tensors.coded`. Nothing here computes. Every node knows its dtype and shape on creation.
"""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, ShapeError
from lbrx.tensors.dtype import DTYPES, DType, promote
from lbrx.tensors.shape import Layout, Shape, broadcast_shapes, product_shape
from lbrx.tensors.storage import Storage

BOOL, I32, I64, F32, F64 = (DTYPES[name] for name in ("bool", "i32", "i64", "f32", "f64"))
Rows = npt.NDArray[np.int64]
StreamKey = tuple[int, int]


class Expr:
    """A node of the graph: a dtype, a shape, and the nodes ``args`` that it depends on."""

    __slots__ = ("args", "dtype", "is_simple", "shape")
    facts: ClassVar[tuple[str, ...] | None] = ()
    """Attributes that define the structure of an expression, besides class and ``args``. None: it cannot be cached."""

    def __init__(self, dtype: DType, shape: Shape, is_simple: bool = False, args: tuple[Expr, ...] = ()) -> None:
        self.dtype = dtype
        self.shape = shape
        self.is_simple = is_simple  # one pass over its elements computes it, with nothing to compute first
        self.args = args

    def over(self, args: tuple[Expr, ...]) -> Expr:
        """Return the same node with other ``args`` of the same dtypes and shapes."""
        node = copy(self)
        node.args = args
        return node


class View(Expr):
    """Elements seen through a layout. With ``rows``, axis 0 is indirect: element i is at row ``rows[i]``."""

    __slots__ = ("layout", "rows")
    facts: ClassVar[tuple[str, ...] | None] = ("layout",)
    in_storage = False  # whether the elements are the unmodified bytes of a storage

    def __init__(
        self,
        dtype: DType,
        layout: Layout,
        rows: Rows | None,
        is_simple: bool = False,
        args: tuple[Expr, ...] = (),
    ) -> None:
        super().__init__(dtype, layout.shape, is_simple, args)
        self.layout = layout
        self.rows = rows

    @property
    def is_whole(self) -> bool:
        """Whether the view contains all elements in their original order."""
        return self.rows is None and self.layout == Layout.contiguous(self.shape)

    def through(self, layout: Layout, rows: Rows | None = None) -> Expr:
        """Return the same elements seen through another layout."""
        raise NotImplementedError


class Source(View):
    """Elements in a storage."""

    __slots__ = ("storage",)
    origin = "source"
    in_storage = True

    def __init__(self, storage: Storage, dtype: DType, layout: Layout, rows: Rows | None = None) -> None:
        super().__init__(dtype, layout, rows, is_simple=True)
        self.storage = storage

    def through(self, layout: Layout, rows: Rows | None = None) -> Source:
        return Source(self.storage, self.dtype, layout, rows)


class Scalar(Expr):
    """A Python number. It is weak: it adopts the dtype of the other operand, within its kind."""

    __slots__ = ("value",)

    def __init__(self, value: float | int | bool, dtype: DType | None = None) -> None:
        super().__init__(dtype or scalar_dtype(value), (), is_simple=True)
        self.value = value


class Counter(Expr):
    """A value computed from an element's position: its linear index, or a random number of a stream."""

    __slots__ = ("key", "layout", "origin")
    rows = None

    def __init__(self, origin: str, layout: Layout, key: StreamKey = (0, 0)) -> None:
        super().__init__(I64 if origin == "index" else F32, layout.shape, is_simple=True)
        self.origin = origin
        self.layout = layout
        self.key = key


class Stored(View):
    """An expression that is computed and stored first, then seen through a layout that cannot be pushed down."""

    __slots__ = ()

    def __init__(self, inner: Expr, layout: Layout, rows: Rows | None = None) -> None:
        super().__init__(inner.dtype, layout, rows, args=(inner,))

    @property
    def inner(self) -> Expr:
        return self.args[0]

    def through(self, layout: Layout, rows: Rows | None = None) -> Stored:
        return Stored(self.inner, layout, rows)


class Map(Expr):
    """An element-wise operation on arguments that broadcast."""

    __slots__ = ("op",)

    def __init__(self, op: str, args: tuple[Expr, ...], dtype: DType) -> None:
        shape = args[0].shape
        is_simple = args[0].is_simple
        for arg in args[1:]:
            is_simple = is_simple and arg.is_simple
            if arg.shape and arg.shape != shape:
                shape = broadcast_shapes(shape, arg.shape) if shape else arg.shape
        self.dtype = dtype
        self.shape = shape
        self.is_simple = is_simple
        self.args = args
        self.op = op

    def over(self, args: tuple[Expr, ...]) -> Map:
        return Map(self.op, args, self.dtype)


class Reduce(Expr):
    """sum, sumsq, dot, min, max or argmax of the whole tensor (the result has no axes) or along the last axis."""

    __slots__ = facts = ("keepdims", "last_axis", "op")

    def __init__(self, op: str, args: tuple[Expr, ...], last_axis: bool, keepdims: bool = False) -> None:
        shape = args[0].shape if len(args) == 1 else broadcast_shapes(*(arg.shape for arg in args))
        if last_axis and not shape:
            raise ShapeError(f"{op} along the last axis needs a tensor with axes")
        if op in ("min", "max", "argmax") and 0 in (shape[-1:] if last_axis else shape):
            raise ShapeError(f"{op} of a tensor of shape {shape} has no elements to choose from")
        if not last_axis:
            out_shape: Shape = ()
        else:
            out_shape = (*shape[:-1], 1) if keepdims else shape[:-1]
        super().__init__(reduce_dtype(op, args, last_axis), out_shape, args=args)
        self.op = op
        self.last_axis = last_axis
        self.keepdims = keepdims


@dataclass(eq=False, slots=True)
class KthSearch:
    """One search for the k-th largest element. Its value and its index share the work."""

    arg: Expr
    k: int
    needs_index: bool = False


class Kth(Expr):
    """The value, key or linear index of the k-th largest element. Ties go to the lowest index."""

    __slots__ = ("part", "search")
    facts = ("part",)

    def __init__(self, search: KthSearch, part: str) -> None:
        super().__init__(_kth_dtype(search, part), (), args=(search.arg,))
        self.search = search
        self.part = part


def _kth_dtype(search: KthSearch, part: str) -> DType:
    if part == "key":
        return order_key_dtype(search.arg.dtype)
    return I64 if part == "index" else search.arg.dtype.compute


class Rank(Expr):
    """The rank of each element in its sorted row. Equal elements keep their order."""

    __slots__ = facts = ("descending",)

    def __init__(self, arg: Expr, descending: bool) -> None:
        if not arg.shape:
            raise ShapeError("rank needs a tensor with axes")
        super().__init__(I64, arg.shape, args=(arg,))
        self.descending = descending


class Concat(Expr):
    """Tensors joined along an axis."""

    __slots__ = facts = ("axis",)

    def __init__(self, parts: tuple[Expr, ...], axis: int) -> None:
        first = parts[0]
        for part in parts:
            others = (part.shape[:axis], part.shape[axis + 1 :])
            if len(part.shape) != len(first.shape) or others != (first.shape[:axis], first.shape[axis + 1 :]):
                raise ShapeError(
                    f"shapes {first.shape} and {part.shape} differ outside axis {axis} and cannot be joined along it"
                )
            if part.dtype is not first.dtype:
                raise DTypeError(f"cannot join {first.dtype} and {part.dtype}; cast one with .to()")
        size = sum(part.shape[axis] for part in parts)
        super().__init__(first.dtype, (*first.shape[:axis], size, *first.shape[axis + 1 :]), args=parts)
        self.axis = axis


class MatMul(Expr):
    """a [..., n, k] times b [..., k, m] in f32. With ``transpose_b``, b is [..., m, k]. Operands stay quantized.

    Rows are multiplied in panels whose size depends only on the shapes. ``block_rows`` sets smaller panels for thin
    matrices, whose product is never stored.
    """

    __slots__ = ("block_rows", "transpose_b")
    facts = None  # operands are resolved as tensors, so each product has its own plan

    def __init__(self, a: Expr, b: Expr, transpose_b: bool = False, block_rows: int | None = None) -> None:
        super().__init__(F32, product_shape(a.shape, b.shape, transpose_b), args=(a, b))
        self.transpose_b = transpose_b
        self.block_rows = block_rows


class Coded(Expr):
    """A quantized tensor: the bytes of a codec. ``shape`` counts decoded elements."""

    __slots__ = ("codec",)
    codec: str

    @property
    def nbytes(self) -> int:
        raise NotImplementedError

    @property
    def values(self) -> Expr:
        """The decoded elements, always the same node, so that a pass decodes them once."""
        raise NotImplementedError


def values_of(arg: Expr) -> Expr:
    """Return the decoded elements of a quantized tensor, or any other expression unchanged."""
    return arg.values if isinstance(arg, Coded) else arg


def scalar_dtype(value: float | int | bool) -> DType:
    if isinstance(value, (bool, np.bool_)):
        return BOOL
    return I64 if isinstance(value, (int, np.integer)) else F64


_KIND_ORDER = {"b": 0, "i": 1, "u": 1, "f": 2}


def common_dtype(args: tuple[Expr, ...]) -> DType:
    """Return NumPy's promotion of the compute types. Tensors without axes do not widen tensors with axes."""
    first = args[0].dtype
    if len(args) == 1 or (len(args) == 2 and args[1].dtype is first):
        return first.compute
    strong = [arg.dtype for arg in args if arg.shape]
    weak = [arg.dtype for arg in args if not arg.shape]
    if not strong:
        return _common_weak(args)
    result = strong[0].compute
    for other in strong[1:]:
        result = promote(result, other)
    for other in weak:
        if _KIND_ORDER[other.kind] > _KIND_ORDER[result.kind]:
            result = promote(result, other)
    return result


def _common_weak(args: tuple[Expr, ...]) -> DType:
    numbers = [arg for arg in args if isinstance(arg, Scalar)]
    typed = [arg.dtype for arg in args if not isinstance(arg, Scalar)] or [numbers[0].dtype]
    result = typed[0].compute
    for other in typed[1:]:
        result = promote(result, other)
    for number in numbers:
        if _KIND_ORDER[number.dtype.kind] > _KIND_ORDER[result.kind]:
            result = promote(result, number.dtype)
    return result


def float_dtype(args: tuple[Expr, ...]) -> DType:
    """Return the float dtype of division and of functions such as sqrt. Integers of up to 16 bits become f32."""
    common = common_dtype(args)
    return common if common.is_float else promote(common, F32)


def reduce_dtype(op: str, args: tuple[Expr, ...], last_axis: bool) -> DType:
    common = common_dtype(args)
    if op == "argmax":
        return I64
    if op in ("min", "max"):
        return common
    if not common.is_float:
        return I64
    return common if last_axis and op != "sumsq" else F64  # squares can overflow f32 even if the norm does not


_ARITHMETIC = frozenset({"add", "sub", "mul", "minimum", "maximum"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_LOGIC = frozenset({"and", "or", "xor"})
_FLOAT_FUNCTIONS = frozenset({"div", "sqrt", "exp", "log", "sin", "cos", "acos", "tanh", "erf"})
_DIVISIONS = frozenset({"pow", "floordiv", "mod"})
_SAME_TYPE = frozenset({"neg", "abs", "sign", "floor", "round"})
_OTHERS = frozenset({"not", "where", "cast", "isnan", "order_key"})
MAP_OPS = _ARITHMETIC | _COMPARISONS | _LOGIC | _FLOAT_FUNCTIONS | _DIVISIONS | _SAME_TYPE | _OTHERS


def order_key_dtype(dtype: DType) -> DType:
    """Return the integer dtype of sort keys: NaN is above everything, and both zeros are equal."""
    return I64 if dtype.compute_name in ("f64", "i64") else I32


def apply(op: str, *args: Expr) -> Expr:
    """Apply an element-wise operation. NumPy's rules give the dtype of the result.

    >>> apply("div", Scalar(1), Scalar(2)).dtype
    DType(f64)
    """
    args = tuple(values_of(arg) for arg in args)
    if op in _COMPARISONS:
        return Map(op, _comparable(args), BOOL)
    if op == "isnan":
        return Map(op, args, BOOL)
    if op == "order_key":
        return Map(op, args, order_key_dtype(args[0].dtype))
    if op == "where":
        return Map(op, args, _fitting_dtype(args[1:]))
    if op in _FLOAT_FUNCTIONS:
        return Map(op, args, F64 if op == "div" and not common_dtype(args).is_float else float_dtype(args))
    result_dtype = _fitting_dtype(args)
    if op in _DIVISIONS and result_dtype is BOOL:  # like NumPy
        result_dtype = DTYPES["i8"]
    if op in _LOGIC or op == "not":
        if result_dtype.is_float:
            raise DTypeError(f"{op!r} takes bool or integer tensors, not {result_dtype}")
    elif result_dtype is BOOL and op in ("sub", "neg", "sign"):
        raise DTypeError(f"{op!r} is not defined for bool; cast with .to('i8') first")
    elif op in ("floor", "round") and not result_dtype.is_float:
        return args[0]
    return Map(op, args, result_dtype)


def _fits(value: float | int | bool, dtype: DType) -> bool:
    """Return whether a dtype can represent a number. Floats accept any number."""
    if dtype.is_float or isinstance(value, (bool, float)):
        return True
    limits = np.iinfo(dtype.numpy)
    return bool(limits.min <= value <= limits.max)


def _fitting_dtype(args: tuple[Expr, ...]) -> DType:
    """Return the common dtype. As in NumPy, a Python integer must fit into the integers it is combined with."""
    common = common_dtype(args)
    for arg in args:
        if isinstance(arg, Scalar) and not _fits(arg.value, common):
            raise DTypeError(f"{arg.value} does not fit into {common}; cast the tensor with .to() first")
    return common


def _comparable(args: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Convert the arguments of a comparison to one dtype. Integers are widened until all values fit."""
    widest = common = common_dtype(args)
    if common.is_float:
        return tuple(arg if arg.shape or isinstance(arg, Scalar) else cast(arg, common) for arg in args)
    for arg in args:
        if not isinstance(arg, Scalar):
            widest = promote(widest, arg.dtype)
        elif not _fits(arg.value, I64):
            raise DTypeError(f"{arg.value} does not fit into i64, so a tensor of {common} cannot be compared with it")
        elif not _fits(arg.value, widest):
            widest = I64
    if widest is common:
        return args
    return tuple(arg if isinstance(arg, Scalar) else cast(arg, widest) for arg in args)


def cast(arg: Expr, dtype: DType) -> Expr:
    """Convert to another dtype, rounding to nearest even. Floats are truncated and clipped to integers."""
    arg = values_of(arg)
    return arg if arg.dtype is dtype else Map("cast", (arg,), dtype)


def constant(value: Any) -> Expr:
    """Return a Scalar for a Python or NumPy number."""
    if isinstance(value, (bool, int, float)):
        return Scalar(value)
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return Scalar(value.item())
    raise DTypeError(f"expected a tensor or a number, not {type(value).__name__}")
