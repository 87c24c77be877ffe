"""The CPU as a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lbrx.devices.cpu.codecs.encode import BlockDestination
from lbrx.devices.cpu.run import run_pass
from lbrx.engine.bind import BoundPass
from lbrx.engine.destination import ArrayDestination, EncodeTarget, SinkTarget
from lbrx.engine.program import Program
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import CpuStorage, Storage

if TYPE_CHECKING:
    from lbrx.devices.cpu.prepared import CompiledCall
    from lbrx.engine.arrays import Floats, Values
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.device import RowProduct, Work
    from lbrx.engine.recording import CompiledStep, Recording
    from lbrx.tensors.tensor import Tensor


class CpuDevice:
    """Does everything; other devices leave to it what they cannot do."""

    name = "cpu"
    counts_keys = True

    def open(self) -> None:
        """It is always there."""

    def why_not(self, _work: Work) -> None:
        return None

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        return run_pass(bound, targets)

    def encoder(self, target: EncodeTarget) -> BlockDestination:
        return BlockDestination(target)

    def prepare(self, program: Program) -> CompiledCall:
        from lbrx.devices.cpu.prepared import CompiledCall

        return CompiledCall(program)

    def store(self, storage: Storage) -> Storage:
        return storage

    def copies(self, _storage: Storage, _dtype: DType) -> bool:
        """A storage that is read keeps its own bytes."""
        return False

    def load(self, storage: Storage) -> CpuStorage:
        return CpuStorage(storage.read_at(0, storage.nbytes))

    def destination(self, dtype: DType, elements: int) -> ArrayDestination:
        return ArrayDestination(dtype, elements)

    @cached_property  # imported when they are first asked for, and called without detours: calls are many and short
    def linear(self) -> Callable[[Values, Tensor], Floats]:
        from lbrx.devices.cpu.ops.linear import linear

        return linear

    def matmul(self, a: Values, b: Values, transpose_b: bool) -> CpuStorage:
        from lbrx.devices.cpu.ops.matmul import matmul

        return CpuStorage.from_array(matmul(a, b, transpose_b))

    def product_rows(self, a: Tensor, b: Tensor, transpose_b: bool, block_rows: int | None) -> RowProduct:
        from lbrx.devices.cpu.ops.low_rank import LowRankProduct
        from lbrx.devices.cpu.ops.matmul import PanelProduct

        if block_rows is None:
            return PanelProduct(a, b, transpose_b)
        return LowRankProduct(a, b.T if transpose_b else b, block_rows)

    def attention(self, q: Any, k: Any, v: Any, options: AttentionOptions) -> Floats:
        from lbrx.devices.cpu.ops.attention import attention

        return attention(q, k, v, options)

    @cached_property
    def apply(self) -> Callable[..., Floats]:
        from lbrx.devices.cpu.ops.array_operations import apply

        return apply

    @cached_property
    def recur(self) -> Callable[..., Floats]:
        from lbrx.devices.cpu.ops.recurrences import recur

        return recur

    @cached_property
    def gather(self) -> Callable[[Tensor, Any], Floats]:
        from lbrx.devices.cpu.ops.weight_rows import gather

        return gather

    def compile_step(self, recording: Recording) -> CompiledStep:
        from lbrx.devices.cpu.recorded.step import Step

        return Step(recording)
