"""What was fused: the passes that values need, in words and as the shaders that Metal runs."""

from __future__ import annotations

from lbrx.devices.metal.codegen.source import pass_kernel
from lbrx.devices.metal.codegen.support import why_not
from lbrx.engine.bind import BoundPass
from lbrx.engine.device import Multiplication, recorded_passes
from lbrx.engine.products import ProductRows
from lbrx.tensors.expr import Scalar
from lbrx.tensors.tensor import Tensor


def explain(*tensors: Tensor, with_shaders: bool = False) -> str:
    """Compute tensors and tell in which passes that was done; with the Metal kernel of each if asked for.

    >>> import lbrx
    >>> a = lbrx.full((2, 3), 1.0, "bf16").realize()
    >>> print(explain((a * 2 + 1).to("bf16")))
    pass 1 over (2, 3): one kernel, reads 12 B, stores 1 result
    v0 = source bf16 (unit)
    v1 = scalar f32
    v2 = scalar f32
    v3 = mul f32 v0 v1
    v4 = add f32 v3 v2
    v5 = cast bf16 v4
    store bf16 v5
    """
    from lbrx.engine.evaluate import evaluate_exprs

    with recorded_passes() as passes:
        evaluate_exprs([*(tensor.expr for tensor in tensors), Scalar(0)])  # two values: no plan from before is used
    return "\n\n".join(
        f"pass {number}: {each}" if isinstance(each, Multiplication) else _described(number, each, with_shaders)
        for number, each in enumerate(passes, 1)
    )


def _described(number: int, bound: BoundPass, with_shaders: bool) -> str:
    from lbrx.base.system import format_bytes

    program = bound.program
    inputs = [leaf for leaf in bound.leaves if leaf.storage is not None]
    stored = [sink for sink in program.sinks if sink.op in ("store", "row_store")]
    others = len(program.sinks) - len(stored)
    makes = [f"stores {len(stored)} result{'s' if len(stored) > 1 else ''}"] if stored else []
    makes += [f"finds {others} number{'s' if others > 1 else ''}"] if others else []
    read = sum(leaf.dtype.nbytes(bound.elements) for leaf in inputs)
    reason = why_not(program)
    where = "one kernel" if reason is None else f"on the CPU only, because {reason}"
    head = f"pass {number} over {bound.space}: {where}, reads {format_bytes(read)}, {', '.join(makes)}"
    lines = [head, *program.describe().splitlines()]
    for line, leaf in enumerate(bound.leaves, 1):
        if isinstance(leaf.storage, ProductRows):
            lines[line] = lines[line].replace("source", f"{leaf.storage.operation}, read in panels,")
    if with_shaders and reason is None:
        lines.append(pass_kernel(program).text)
    return "\n".join(lines)
