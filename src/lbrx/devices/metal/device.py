"""Metal as a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lbrx.devices.metal.codegen.support import why_not
from lbrx.devices.metal.context.current import metal_context
from lbrx.engine.fuse import BoundPass
from lbrx.engine.program import Program
from lbrx.engine.sinks import SinkTarget
from lbrx.errors import UsageError
from lbrx.tensors.dtype import DType
from lbrx.tensors.storage import CpuStorage, Storage

if TYPE_CHECKING:
    from lbrx.devices.metal.context.storage import MetalDestination
    from lbrx.engine.attention_options import AttentionOptions
    from lbrx.engine.device import Floats
    from lbrx.tensors.tensor import Tensor


class MetalDevice:
    """Runs passes, products and attention on the GPU; what it cannot run, `why_not` and None say."""

    name = "metal"

    def open(self) -> None:
        metal_context()

    def why_not(self, program: Program) -> str | None:
        return why_not(program)

    def run_pass(self, bound: BoundPass, targets: list[SinkTarget]) -> list[Any]:
        from lbrx.devices.metal.run import run_pass_on_metal

        return run_pass_on_metal(metal_context(), bound, targets)

    def prepare(self, _program: Program) -> None:
        return None

    def store(self, storage: Storage) -> Storage:
        from lbrx.devices.metal.context.storage import MetalStorage

        return MetalStorage.from_storage(metal_context(), storage)

    def load(self, storage: Storage) -> CpuStorage:
        from lbrx.devices.metal.context.storage import MetalStorage

        if not isinstance(storage, MetalStorage):
            raise UsageError(f"a {type(storage).__name__} is not on Metal")
        return CpuStorage(storage.copy_to_cpu())

    def destination(self, dtype: DType, elements: int) -> MetalDestination:
        from lbrx.devices.metal.context.storage import MetalDestination

        return MetalDestination(metal_context(), dtype, elements)

    def linear(self, x: Floats, weight: Tensor) -> Floats | None:
        from lbrx.devices.metal.ops.on_arrays import linear_on_metal

        return linear_on_metal(x, weight)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        from lbrx.devices.metal.ops.products import matmul

        return matmul(a, b)

    def attention(self, q: Any, k: Any, v: Any, options: AttentionOptions) -> Floats | None:
        from lbrx.devices.metal.ops.on_arrays import attention_on_metal

        return attention_on_metal(q, k, v, options)
