"""NumPy as a device: slow, small and readable, to check kernels of other devices against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx.devices.cpu.codecs.encode import BlockDestination
from lbrx.devices.numpy import products
from lbrx.devices.numpy.array_operations import apply
from lbrx.devices.numpy.recurrences import recur
from lbrx.devices.numpy.run import run_pass
from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.bind import BoundPass
from lbrx.engine.destination import ArrayDestination, EncodeTarget, SinkTarget
from lbrx.engine.program import Program
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import CpuStorage, Storage
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.device import RowProduct, Work
    from lbrx.engine.recording import Recording

_PANEL_ROWS = 1024


class NumpyStorage(CpuStorage):
    """Bytes in memory that passes of this device read."""

    __slots__ = ()
    device = "numpy"


class NumpyDestination(ArrayDestination):
    """A result that stays on this device."""

    __slots__ = ()
    device = "numpy"

    @property
    def storage(self) -> NumpyStorage:
        return NumpyStorage(self.whole)


class NumpyDevice:
    """Runs everything in one thread, on whole arrays.

    Exact operations have the bits of the CPU: arithmetic, casts, comparisons, extremes, selection, ranks, uniform
    random numbers and encodings (by the kernels of the CPU). exp, log, sin, cos, acos and normal random numbers are
    within 4 units in the last place of f32, sums within 1e-12 of the sum of magnitudes. A NaN may have another sign or
    payload.

    Memory: of a pass, all values of one block of 65,536 elements (or of one row if that is longer). Products hold
    their operands in f32, attention all of its scores, and `store` a copy of what is not in memory yet.
    """

    name = "numpy"
    counts_keys = False

    def open(self) -> None:
        """It is always there."""

    def why_not(self, _work: Work) -> None:
        return None

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        return run_pass(bound, targets)

    def encoder(self, target: EncodeTarget) -> BlockDestination:
        return BlockDestination(target)

    def prepare(self, _program: Program) -> None:
        return None

    def store(self, storage: Storage) -> Storage:
        if isinstance(storage, CpuStorage):
            return NumpyStorage(storage.read_at(0, storage.nbytes))
        data = np.empty(storage.nbytes, np.uint8)
        storage.read_into(0, data)
        return NumpyStorage(data)

    def copies(self, _storage: Storage, _dtype: DType) -> bool:
        return False

    def load(self, storage: Storage) -> CpuStorage:
        return CpuStorage(storage.read_at(0, storage.nbytes))

    def destination(self, dtype: DType, elements: int) -> NumpyDestination:
        return NumpyDestination(dtype, elements)

    def linear(self, x: Values, weight: Tensor) -> Floats:
        return products.matmul(floats(x), floats(weight).T)

    def matmul(self, a: Values, b: Values, transpose_b: bool) -> NumpyStorage:
        left, right = floats(a), floats(b)
        if transpose_b and right.ndim > 1:
            right = right.swapaxes(-1, -2)
        return NumpyStorage(np.ascontiguousarray(products.matmul(left, right)).reshape(-1).view(np.uint8))

    def product_rows(self, a: Tensor, b: Tensor, transpose_b: bool, block_rows: int | None) -> RowProduct:
        return products.RowProduct(floats(a), floats(b).T if transpose_b else floats(b), block_rows or _PANEL_ROWS)

    def attention(self, q: Any, k: Any, v: Any, options: AttentionOptions) -> Floats:
        return products.attention(q, k, v, options)

    def apply(
        self, operation: str, values: Floats, others: tuple[Floats, ...] = (), numbers: tuple[float, ...] = ()
    ) -> Floats:
        return apply(operation, values, others, numbers)

    def recur(
        self, operation: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...] = ()
    ) -> Floats:
        return recur(operation, state, values, others, numbers)

    def gather(self, weight: Tensor, numbers: Any) -> Floats:
        return np.asarray(floats(weight)[numbers])

    def compile_step(self, _recording: Recording) -> None:
        return None
