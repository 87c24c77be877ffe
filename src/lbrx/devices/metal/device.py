"""Metal as a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from lbrx.devices.metal.codegen.support import why_not
from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.bind import BoundPass
from lbrx.engine.destination import EncodeTarget, SinkTarget
from lbrx.engine.device import CPU, Encoder, RowProduct, Work, device, warn_fallback
from lbrx.engine.program import Program
from lbrx.errors import UsageError
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import CpuStorage, MmapStorage, Storage

if TYPE_CHECKING:
    from lbrx.devices.metal.context.storage import MetalDestination
    from lbrx.devices.metal.encode import BlockSink
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.recording import Recording
    from lbrx.tensors.tensor import Tensor


Result = TypeVar("Result")


class MetalDevice:
    """Runs passes, products and attention on the GPU; `why_not` says what it cannot run.

    The CPU does the work of a kernel that does not compile, with a warning.
    """

    name = "metal"
    counts_keys = False

    def open(self) -> None:
        metal_context()

    def why_not(self, work: Work) -> str | None:
        if isinstance(work, Program):
            return why_not(work)
        if isinstance(work, Encoder):
            from lbrx.devices.metal.encode import why_not_encoded

            return why_not_encoded(work)
        from lbrx.devices.metal.ops.on_arrays import why_not_multiplied

        return why_not_multiplied(work)

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        from lbrx.devices.metal.run import run_pass_on_metal

        return _or_else(
            lambda: run_pass_on_metal(metal_context(), bound, targets),
            lambda: device(CPU).run_pass(bound, targets),
        )

    def encoder(self, target: EncodeTarget) -> BlockSink:
        from lbrx.devices.metal.encode import BlockSink

        return BlockSink(target)

    def prepare(self, _program: Program) -> None:
        return None

    def store(self, storage: Storage) -> Storage:
        from lbrx.devices.metal.context.storage import MetalStorage

        return MetalStorage.from_storage(metal_context(), storage)

    def copies(self, storage: Storage, dtype: DType) -> bool:
        address = storage.address if isinstance(storage, MmapStorage) else None
        return storage.device == CPU and (address is None or address % dtype.itemsize != 0)

    def load(self, storage: Storage) -> CpuStorage:
        from lbrx.devices.metal.context.storage import MetalStorage

        if not isinstance(storage, MetalStorage):
            raise UsageError(f"a {type(storage).__name__} is not on Metal")
        return CpuStorage(storage.copy_to_cpu())

    def destination(self, dtype: DType, elements: int) -> MetalDestination:
        from lbrx.devices.metal.context.storage import MetalDestination

        return MetalDestination(metal_context(), dtype, elements)

    def linear(self, x: Values, weight: Tensor) -> Floats:
        from lbrx.devices.metal.ops.on_arrays import linear_on_metal

        return _or_else(lambda: linear_on_metal(floats(x), weight), lambda: device(CPU).linear(x, _on_cpu(weight)))

    def matmul(self, a: Values, b: Values, transpose_b: bool) -> Storage:
        from lbrx.devices.metal.ops.products import matmul

        return _or_else(
            lambda: matmul(a, b, transpose_b),
            lambda: self.store(device(CPU).matmul(_on_cpu(a), _on_cpu(b), transpose_b)),
        )

    def product_rows(self, a: Tensor, b: Tensor, transpose_b: bool, block_rows: int | None) -> RowProduct:
        """Panels are read by the threads of the CPU, which also compute them."""
        return device(CPU).product_rows(a, b, transpose_b, block_rows)

    def attention(self, q: Any, k: Any, v: Any, options: AttentionOptions) -> Floats:
        from lbrx.devices.metal.ops.on_arrays import attention_on_metal

        return _or_else(
            lambda: attention_on_metal(q, k, v, options),
            lambda: device(CPU).attention(q, k, v, options),
        )

    def apply(
        self, operation: str, values: Floats, others: tuple[Floats, ...] = (), numbers: tuple[float, ...] = ()
    ) -> Floats:
        """Arrays in memory: the CPU is done before a GPU has been given the work and the result is back."""
        return device(CPU).apply(operation, values, others, numbers)

    def recur(
        self, operation: str, state: Floats, values: Floats, others: tuple[Any, ...], numbers: tuple[int, ...] = ()
    ) -> Floats:
        """Arrays in memory, one token after the other: the CPU computes them."""
        return device(CPU).recur(operation, state, values, others, numbers)

    def gather(self, weight: Tensor, numbers: Any) -> Floats:
        return device(CPU).gather(weight, numbers)

    def compile_step(self, _recording: Recording) -> None:
        return None


def _or_else(on_metal: Callable[[], Result], on_cpu: Callable[[], Result]) -> Result:
    """What the GPU computes, or the CPU if a kernel does not compile; each reason is reported once."""
    try:
        return on_metal()
    except ShaderError as error:
        lines = str(error).splitlines()
        reason = next((line for line in lines if "error:" in line), lines[0])
        warn_fallback(f"a Metal kernel does not compile ({reason.strip()})")
        return on_cpu()


def _on_cpu(values: Any) -> Any:
    from lbrx.tensors.tensor import Tensor

    return values.to_device(CPU) if isinstance(values, Tensor) else values
