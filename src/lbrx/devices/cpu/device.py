"""The CPU as a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lbrx.devices.cpu.run import run_pass
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.fuse import BoundPass
from lbrx.engine.program import Program
from lbrx.engine.sinks import SinkTarget
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import CpuStorage, Storage

if TYPE_CHECKING:
    from lbrx.devices.cpu.prepared import CompiledCall


class CpuDevice:
    """Runs every pass. Products and attention on the CPU are the work of `lbrx.ops`."""

    name = "cpu"

    def open(self) -> None:
        """It is always there."""

    def why_not(self, _program: Program) -> None:
        return None

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        return run_pass(bound, targets)

    def prepare(self, program: Program) -> CompiledCall:
        from lbrx.devices.cpu.prepared import CompiledCall

        return CompiledCall(program)

    def store(self, storage: Storage) -> Storage:
        return storage

    def load(self, storage: Storage) -> CpuStorage:
        return CpuStorage(storage.read_at(0, storage.nbytes))

    def destination(self, dtype: DType, elements: int) -> ArrayDestination:
        return ArrayDestination(dtype, elements)

    def linear(self, *_arguments: Any) -> None:
        return None

    def matmul(self, *_arguments: Any) -> None:
        return None

    def attention(self, *_arguments: Any, **_options: Any) -> None:
        return None
