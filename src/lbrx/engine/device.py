"""Devices: what the engine asks of one, and which of them runs a pass."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.engine.arrays import Floats, Values, recorder_of
from lbrx.engine.bind import BoundPass
from lbrx.engine.destination import Destination, EncodeTarget, MemoryDestination, SinkTarget
from lbrx.engine.program import Program
from lbrx.errors import UsageError
from lbrx.registry import DEVICES, load
from lbrx.settings import Device as DeviceName
from lbrx.settings import settings, using
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.coded import U8, Blocks, Encode
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr, MatMul, Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import CpuStorage, Storage
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.recording import CompiledStep, Recording

CPU = "cpu"
ARRAY_OPERATIONS = (
    *("softmax", "rms_norm", "layer_norm", "rope"),
    *("silu", "gelu", "gelu_tanh", "relu", "relu_squared", "silu_mul", "gelu_mul", "gelu_tanh_mul", "softcap"),
)
"""What `Device.apply` computes; `lbrx.ops` describes each."""
RECURRENCES = ("causal_conv", "selective_scan", "state_space", "gated_delta")
"""What `Device.recur` computes; `lbrx.ops.recurrences` describes each."""
Combine = Callable[[npt.NDArray[Any], npt.NDArray[np.int64] | None], Any]


class Linear(NamedTuple):
    """Work for a device: `Device.linear` with a weight of a dtype or quantization."""

    weight_type: str


class Heads(NamedTuple):
    """Work for a device: attention with heads of so many elements."""

    size: int


class Multiplication(NamedTuple):
    """A matrix product as records show it: shapes and types of its operands."""

    a: str
    b: str

    def __str__(self) -> str:
        return f"product of {self.a} and {self.b}"


class Encoder(NamedTuple):
    """Work for a device: encoding values as blocks of a codec, perhaps with an importance matrix."""

    codec: Codec
    is_weighted: bool


Work = Program | Encoder | Linear | Heads


class PreparedPass(Protocol):
    """A pass with one sink over contiguous memory. ``leaves`` are addresses, ``numbers`` the scalars."""

    def store(self, leaves: list[int], numbers: list[Any], target: int, nbytes: int, elements: int) -> None:
        """Store all elements at an address."""

    def reduce(self, leaves: list[int], numbers: list[Any], elements: int, combine: Combine) -> Any:
        """The value of the reduction, combined from the partial results of blocks."""


class RowProduct(Protocol):
    """A matrix product in panels of rows, which have the bits of `Device.matmul` if there are no ``block_rows``."""

    @property
    def panel_rows(self) -> int:
        """Rows of a panel, of which the last may have more or fewer."""

    def panel(self, row: int) -> tuple[int, int]:
        """The first and one past the last row of the panel that has a row."""

    def multiply(self, first: int, stop: int, out: Floats) -> None:
        """Compute a panel, on this thread if others have work of their own."""


class Device(Protocol):
    """Where tensors live and passes run. The engine and ops know devices through this protocol only."""

    name: str
    counts_keys: bool  # a collect sink with a low end above its high end counts, in each tile, the keys at the high end

    def open(self) -> None:
        """Raise an error that says what to do if the device is not there."""

    def why_not(self, work: Work) -> str | None:
        """Why this device cannot do some work, or None if it can."""

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        """Run a pass: for each sink, the partial results of its blocks if it is a reduction, else None."""

    def encoder(self, target: EncodeTarget) -> Destination:
        """What takes f32 values, in any order and from many threads, and hands on their blocks.

        A pass of this device encodes what it computes; a pass of another device hands over its values.
        """

    def prepare(self, program: Program) -> PreparedPass | None:
        """A pass over contiguous memory that can be called again and again; None if there is no such short cut."""

    def store(self, storage: Storage) -> Storage:
        """The same bytes on this device, without a copy if possible."""

    def copies(self, storage: Storage, dtype: DType) -> bool:
        """Whether passes copy elements of this storage, because they cannot use them where they are."""

    def load(self, storage: Storage) -> CpuStorage:
        """The bytes of a storage of this device in plain memory."""

    def destination(self, dtype: DType, elements: int) -> MemoryDestination:
        """Memory on this device for a whole result."""

    def linear(self, x: Values, weight: Tensor) -> Floats:
        """[n, k] in f32 or bf16 times a weight [m, k], transposed: [n, m]."""

    def matmul(self, a: Values, b: Values, transpose_b: bool) -> Storage:
        """The product of operands that fit, in f32 and in C order, on this device."""

    def product_rows(self, a: Tensor, b: Tensor, transpose_b: bool, block_rows: int | None) -> RowProduct:
        """The product of two matrices, to be computed in panels of rows; ``block_rows`` as in `MatMul`."""

    def attention(
        self, q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any], options: AttentionOptions
    ) -> Floats:
        """Attention as `lbrx.ops.attention` describes it, of inputs that fit and are not empty."""

    def apply(
        self, operation: str, values: Floats, others: tuple[Floats, ...] = (), numbers: tuple[float, ...] = ()
    ) -> Floats:
        """One of `ARRAY_OPERATIONS` on an array in memory; ``others`` are further arrays, such as a weight."""

    def recur(
        self, operation: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...] = ()
    ) -> Floats:
        """One of `RECURRENCES` on arrays in memory that fit; ``state`` becomes the state after the last token."""

    def gather(self, weight: Tensor, numbers: npt.NDArray[np.integer[Any]]) -> Floats:
        """The rows of a matrix with these numbers, as f32."""

    def compile_step(self, recording: Recording) -> CompiledStep | None:
        """A list of operations as something that runs without Python between them; None if there is no such form.

        Results have the bits of the methods above, called one by one.
        """


class CpuFallback(UserWarning):
    """Something that was meant for another device ran on the CPU. Each reason is reported once."""


_lock = threading.Lock()
_warned: set[str] = set()
_records: list[list[BoundPass | Multiplication]] = []


@cache
def device(name: str) -> Device:
    """The device of a name.

    >>> device("cpu").name
    'cpu'
    """
    opened: Device = load(DEVICES[DeviceName(name)])()
    return opened


def device_for(values: Any) -> Device:
    """The device that computes with values: their recorder if they are being recorded, else that of the settings."""
    recorder: Device | None = recorder_of(values)
    return device(settings.device) if recorder is None else recorder


@contextmanager
def computing_on(name: str | None, cluster: object = None) -> Iterator[None]:
    """Compute on a device for the length of a ``with`` block; a device that is not there is an error at its start."""
    if name is not None and cluster is not None:
        raise UsageError(f"--device {name} is for this machine, but with --cluster {cluster} its workers compute")
    if name is not None:
        device(name).open()
    with using(device=name):
        yield


@contextmanager
def recorded_passes() -> Iterator[list[BoundPass | Multiplication]]:
    """The passes that are run within a ``with`` block, and the products that are stored, in their order."""
    record: list[BoundPass | Multiplication] = []
    _records.append(record)
    try:
        yield record
    finally:
        _records[:] = [each for each in _records if each is not record]


def note(work: BoundPass | Multiplication) -> None:
    """Add to the records of `recorded_passes`."""
    for record in tuple(_records):
        record.append(work)


def run_pass(bound: BoundPass, targets: Sequence[SinkTarget | EncodeTarget]) -> list[Any]:
    """Run a pass where its inputs or its results are, or on the device of the settings.

    For each sink, the partial results of its blocks if it is a reduction, else None.
    """
    note(bound)
    runs = pass_device(bound, targets)
    if any(leaf.storage is not None and leaf.storage.cache is not None for leaf in bound.leaves):
        from lbrx.engine.cached import use_cached_leaves

        use_cached_leaves(bound, runs)
    return runs.run_pass(bound, [_encoder(each, runs) if isinstance(each, EncodeTarget) else each for each in targets])


def pass_device(bound: BoundPass, targets: Sequence[object]) -> Device:
    """The device that runs a pass."""
    return chosen(_device_name(bound, targets) if bound.elements else CPU, bound.program)


def _encoder(target: EncodeTarget, runs: Device) -> Destination:
    encoding = target.encoding
    return chosen(runs.name, Encoder(encoding.codec, encoding.importance is not None)).encoder(target)


def chosen(name: str, work: Work) -> Device:
    """The device of a name, or the CPU and a warning if that device cannot do some work."""
    target = device(name)
    reason = None if name == CPU else target.why_not(work)
    if reason is None:
        return target
    warn_fallback(reason)
    return device(CPU)


def multiply(a: Values, b: Values, transpose_b: bool = False) -> Storage:
    """The matrix product of operands that fit, in f32, where one of them is or on the device of the settings."""
    return device(product_device(a, b)).matmul(a, b, transpose_b)


def product_device(a: Values, b: Values) -> str:
    """The name of the device that multiplies two operands."""
    names = [settings.device, *(values.encoded().device for values in (a, b) if isinstance(values, Tensor))]
    return next((name for name in names if name != CPU), CPU)


def _device_name(bound: BoundPass, targets: Sequence[object]) -> str:
    if settings.device != CPU:
        return settings.device
    for leaf in bound.leaves:
        if leaf.storage is not None and leaf.storage.device != CPU:
            return leaf.storage.device
    results = [target.device for target in targets if isinstance(target, MemoryDestination)]
    return next((name for name in results if name != CPU), CPU)


def fallbacks() -> tuple[str, ...]:
    """Why work of this process ran on the CPU although it was meant for another device."""
    with _lock:
        return tuple(sorted(_warned))


def warn_fallback(reason: str) -> None:
    """Warn, once for each reason, that something was computed on the CPU instead."""
    with _lock:
        if reason in _warned:
            return
        _warned.add(reason)
    warnings.warn(f"computed on the CPU instead: {reason}", CpuFallback, stacklevel=4)


def device_of(expr: Expr) -> str:
    """Where the elements that an expression reads are: on another device than the CPU if any of them are."""
    seen: set[int] = set()
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, (Source, Blocks)) and node.storage.device != CPU:
            return node.storage.device
        stack += node.args
    return CPU


def moved(expr: Expr, name: str) -> Expr:
    """Stored elements or blocks on a device; an expression is computed, and its result stays there."""
    target = device(name)
    if isinstance(expr, Source):
        return Source(_moved_storage(expr.storage, target), expr.dtype, expr.layout, expr.rows)
    if isinstance(expr, Blocks):
        numbers = tuple(None if each is None else moved(each, name) for each in expr.numbers)
        return Blocks(_moved_storage(expr.storage, target), expr.codec, expr.shape, expr.coding, numbers)
    from lbrx.engine.evaluate import evaluate_product, evaluate_stores

    if isinstance(expr, MatMul):
        return Source(_moved_storage(evaluate_product(expr), target), expr.dtype, Layout.contiguous(expr.shape))
    if isinstance(expr, Encode):
        results = [(part, target.destination(U8, part.nbytes)) for part in expr.parts]
        evaluate_stores(list(results))
        return expr.stored_in([destination.storage for _, destination in results])
    result = target.destination(expr.dtype, math.prod(expr.shape))
    evaluate_stores([(expr, result)])
    return Source(result.storage, expr.dtype, Layout.contiguous(expr.shape))


def _moved_storage(storage: Storage, target: Device) -> Storage:
    if storage.device not in (CPU, target.name):
        storage = device(storage.device).load(storage)
    return target.store(storage)
