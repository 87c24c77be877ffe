"""Record operations on arrays once, to run them many times.

While a `Recorder` records, a `Recorded` value stands for an array: it has a shape, but no numbers. `lbrx.ops` and
NumPy accept it and add to the list of operations. A device compiles the list (`Device.compile_step`).
Code that needs the numbers themselves, such as ``if x > 0`` on a value, raises `CannotRecord`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.tensors.shape import Shape

if TYPE_CHECKING:
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.key_values import KeyValueCache, KeyValues, LayerState
    from lbrx.tensors.tensor import Tensor

Array = npt.NDArray[Any]
_F32 = np.dtype(np.float32)
_METHODS = frozenset(("sum", "mean", "var", "prod", "max", "min", "argmax", "argmin", "argsort", "cumsum", "clip"))
PYTHON = "python"
"""The name of an operation that calls a function of Python."""


class CannotRecord(Exception):
    """The operations depend on values, so they have to be run one by one."""


class View(NamedTuple):
    """A part of the memory of a slot. Offset and strides count bytes."""

    slot: int
    dtype: np.dtype[Any]
    shape: Shape
    strides: Shape
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        expected = self.dtype.itemsize
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True


Operand = View | Array


class Operation(NamedTuple):
    """An operation on slots. ``details`` depend on the name:

    - ``linear``: the weight, a tensor.
    - one of `lbrx.engine.device.ARRAY_OPERATIONS`, ``add``, ``mul`` or ``scale``: numbers.
    - ``copy``: nothing; the output has the values of the input.
    - ``cached_attention``: the number of the layer, the dtype of its keys and values, and the options.
    - ``python``: a function from the arrays of the inputs to that of the output.
    - ``state``: the number of the layer, and a function from its state and the arrays of the inputs to the output.
    """

    name: str
    inputs: tuple[Operand, ...]
    output: View
    details: tuple[Any, ...] = ()


class Recording(NamedTuple):
    """A list of operations for so many tokens, the bytes of its slots, and which of them are inputs and the output."""

    tokens: int
    operations: tuple[Operation, ...]
    slot_bytes: tuple[int, ...]
    inputs: tuple[View, ...]
    output: View


class CompiledStep(Protocol):
    """A recording that a device can run. Fill ``inputs`` first."""

    inputs: Sequence[Array]

    def run(self, cache: KeyValueCache) -> Array:
        """Run all operations for tokens that follow those in the cache. The result is valid until the next run."""

    def run_beside(self, others: Sequence[Any]) -> list[Array] | None:
        """Run this step and others of the same form at the same time, all without attention.

        Returns the results, or None if they cannot run so: because they differ, or call Python.
        """


class Recorder:
    """Takes the operations of a `Device` on `Recorded` values and lists them."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._operations: list[Operation] = []
        self._slots: list[Array] = []
        self._inputs: list[View] = []

    def input(self, shape: Shape) -> Recorded:
        """Return a value of f32 that is filled in before every run."""
        value = self._new(shape, _F32)
        self._inputs.append(value.view)
        return value

    def finish(self, result: Recorded) -> Recording:
        """Return what was recorded; ``result`` is the result of a run."""
        sizes = tuple(slot.nbytes for slot in self._slots)
        return Recording(self.tokens, tuple(self._operations), sizes, tuple(self._inputs), result.contiguous().view)

    def linear(self, x: Recorded, weight: Tensor) -> Recorded:
        return self._add("linear", (x.view,), (x.shape[0], weight.shape[0]), (weight,))

    def apply(
        self,
        operation: str,
        values: Any,
        others: tuple[Any, ...] = (),
        numbers: tuple[float, ...] = (),
        out: Recorded | None = None,
    ) -> Recorded:
        operands = tuple(_operand(other) for other in (values, *others))
        if out is None:
            return self._add(operation, operands, values.shape, numbers)
        self._operations.append(Operation(operation, operands, out.view, numbers))
        return out

    def cached_attention(
        self, q: Recorded, k: Recorded, v: Recorded, memory: KeyValues, options: AttentionOptions
    ) -> Recorded:
        """Attention of new tokens to themselves and those in the cache; stores their keys and values."""
        details = memory.number, memory.keys.dtype, options
        return self._add("cached_attention", (q.view, k.view, v.view), (*q.shape[:2], v.shape[2]), details)

    def call(self, function: Callable[..., Array], *arguments: Any, out: Recorded | None = None) -> Recorded:
        """Call a pure function of arrays in every run. It is called with zeros now, to find the shape of its result."""
        with np.errstate(all="ignore"):
            result = np.asarray(function(*_samples(arguments)))
        if out is None:
            out = self._new(result.shape, result.dtype)
        views: list[View] = []
        template = _collected(arguments, views)

        def run(*arrays: Array) -> Array:
            return function(*_filled(template, iter(arrays)))

        self._operations.append(Operation(PYTHON, tuple(views), out.view, (run,)))
        return out

    def on_state(self, function: Callable[..., Array], number: int, values: Sequence[Any], shape: Shape) -> Recorded:
        """Call a function in every run with the state of a layer of the cache, which it may change."""
        contiguous = tuple(_operand(value.contiguous() if isinstance(value, Recorded) else value) for value in values)
        return self._add("state", contiguous, shape, (number, function))

    def copied(self, value: Recorded) -> Recorded:
        """Return a contiguous copy."""
        out = self._new(value.shape, value.dtype)
        self._operations.append(Operation("copy", (value.view,), out.view))
        return out

    def _add(self, name: str, inputs: tuple[Operand, ...], shape: Shape, details: tuple[Any, ...]) -> Recorded:
        out = self._new(shape, _F32)
        self._operations.append(Operation(name, inputs, out.view, details))
        return out

    def _new(self, shape: Shape, dtype: np.dtype[Any]) -> Recorded:
        if not math.prod(shape):
            raise CannotRecord(f"an array of shape {shape} is empty")
        self._slots.append(np.zeros(shape, dtype))
        return Recorded(self, len(self._slots) - 1, self._slots[-1])

    def start_of(self, slot: int) -> int:
        """Return the address of the zeros that stand for a slot."""
        return int(self._slots[slot].ctypes.data)


class Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """A value that is being recorded. ``sample`` is an array of zeros with the same shape and layout."""

    __slots__ = ("recorder", "sample", "slot")

    def __init__(self, recorder: Recorder, slot: int, sample: Array) -> None:
        self.recorder, self.slot, self.sample = recorder, slot, sample

    shape = property(lambda self: self.sample.shape)
    dtype = property(lambda self: self.sample.dtype)
    ndim = property(lambda self: self.sample.ndim)
    size = property(lambda self: self.sample.size)
    T = property(lambda self: self.transpose())

    @property
    def view(self) -> View:
        sample = self.sample
        offset = sample.ctypes.data - self.recorder.start_of(self.slot)
        return View(self.slot, sample.dtype, sample.shape, sample.strides, offset)

    def __len__(self) -> int:
        return len(self.sample)

    def reshape(self, *shape: Any) -> Recorded:
        reshaped = self.sample.reshape(*shape)
        if np.may_share_memory(reshaped, self.sample):
            return self._part(reshaped)
        return self.recorder.copied(self).reshape(*shape)

    def transpose(self, *axes: Any) -> Recorded:
        return self._part(self.sample.transpose(*axes))

    def contiguous(self) -> Recorded:
        """Return this value in C order."""
        return self if self.view.is_contiguous else self.recorder.copied(self)

    def copy(self) -> Recorded:
        return self.recorder.copied(self)

    def astype(self, dtype: npt.DTypeLike, **options: Any) -> Recorded:
        return self.recorder.call(lambda array: array.astype(dtype, **options), self)

    def __getitem__(self, index: Any) -> Recorded:
        if isinstance(index, Recorded) or (isinstance(index, tuple) and any(isinstance(i, Recorded) for i in index)):
            return self.recorder.call(lambda array, position: array[position], self, index)
        part = np.asarray(self.sample[index])
        if np.may_share_memory(part, self.sample) and part.ndim:
            return self._part(part)
        return self.recorder.call(lambda array: np.asarray(array[index]), self)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.recorder.call(_same, value, out=self[index])

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *given, **named: self.recorder.call(
                lambda array, given, named: np.asarray(getattr(array, name)(*given, **named)), self, given, named
            )
        if hasattr(np.ndarray, name) and not name.startswith("_"):
            raise CannotRecord(f"the method {name!r} of an array cannot be recorded")
        raise AttributeError(name)

    def _part(self, sample: Array) -> Recorded:
        return Recorded(self.recorder, self.slot, sample)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        (out,) = options.pop("out", (None,))
        if method == "__call__" and not options:
            native = self._native(ufunc, out, *inputs)
            if native is not None:
                return native
        function = getattr(ufunc, method)
        return self.recorder.call(lambda *arrays: function(*arrays, **options), *inputs, out=out)

    def _native(self, ufunc: np.ufunc, out: Any, left: Any, right: Any = None) -> Recorded | None:
        """Return a sum or product of f32 as an operation of a device, if it is one."""
        if ufunc not in (np.add, np.multiply) or right is None or (out is not None and not out.view.is_contiguous):
            return None
        if not isinstance(left, Recorded):
            left, right = right, left
        if left.dtype != _F32 or not left.ndim:
            return None
        if ufunc is np.multiply and type(right) in (float, np.float32):
            return self.recorder.apply("scale", left.contiguous(), numbers=(float(right),), out=out)
        if not isinstance(right, (np.ndarray, Recorded)) or right.dtype != _F32:
            return None
        if right.shape not in (left.shape, left.shape[-1:]):
            return None
        other = right.contiguous() if isinstance(right, Recorded) else np.ascontiguousarray(right)
        return self.recorder.apply("add" if ufunc is np.add else "mul", left.contiguous(), (other,), out=out)

    def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Any) -> Any:
        return self.recorder.call(lambda given, named: function(*given, **named), arguments, options)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise CannotRecord("a value that is being recorded has no numbers yet")

    def __bool__(self) -> bool:
        raise CannotRecord("the operations depend on a value")

    __int__ = __float__ = __index__ = __bool__
    __hash__ = None  # type: ignore[assignment]


def run_in_step(function: Callable[..., Array], *values: Any) -> Any:
    """Call a pure function of arrays: now, or in every run if a value is being recorded.

    For code whose control flow depends on values. The shape of the result must not.

    >>> run_in_step(lambda x: x * 2, np.ones(2))
    array([2., 2.])
    """
    recorder = next((value.recorder for value in values if isinstance(value, Recorded)), None)
    return function(*values) if recorder is None else recorder.call(function, *values)


def run_on_state(function: Callable[..., Array], state: LayerState, *values: Any, shape: Shape) -> Any:
    """Call ``function(arrays, *values)``, which updates the arrays of a layer's state in place: now, or in every run.

    Its result has the given shape, and f32 elements.

    >>> from lbrx.engine.key_values import LayerState
    >>> state = LayerState(0, {"sum": (2,)})
    >>> def add(arrays, x):
    ...     arrays["sum"] += x.sum(axis=0)
    ...     return arrays["sum"]
    >>> run_on_state(add, state, np.ones((3, 2), np.float32), shape=(2,))
    array([3., 3.], dtype=float32)
    """
    recorder = next((value.recorder for value in values if isinstance(value, Recorded)), None)
    if recorder is None:
        return function(state.arrays, *values)
    return recorder.on_state(function, state.number, values, shape)


def _same(value: Array) -> Array:
    return value


def _operand(value: Any) -> Operand:
    return value.view if isinstance(value, Recorded) else value


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested tuples, lists and dicts with every leaf changed."""
    if isinstance(structure, (tuple, list)):
        return type(structure)(_mapped(each, change) for each in structure)
    if isinstance(structure, dict):
        return {key: _mapped(each, change) for key, each in structure.items()}
    return change(structure)


class _Gap:
    """The position of a recorded value among arguments."""


_GAP = _Gap()


def _samples(arguments: Any) -> Any:
    return _mapped(arguments, lambda each: each.sample if isinstance(each, Recorded) else each)


def _collected(arguments: Any, views: list[View]) -> Any:
    """Return the arguments with gaps for recorded values, whose views are added to a list."""

    def collect(each: Any) -> Any:
        if not isinstance(each, Recorded):
            return each
        views.append(each.view)
        return _GAP

    return _mapped(arguments, collect)


def _filled(template: Any, arrays: Any) -> Any:
    return _mapped(template, lambda each: next(arrays) if each is _GAP else each)
