"""Products and attention on Metal, for arrays: what `linear` and `attention` do where the settings name that device.

Results are within the bounds that the kernels state, not the bits of the CPU. What has no kernel stays on the CPU, and
the reason is reported once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.native import Floats
from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.ops import products
from lbrx.devices.metal.ops.arrays import CODING_NUMBERS, download, upload
from lbrx.devices.metal.ops.attention import LARGEST_HEAD, attention
from lbrx.engine.attention_options import AttentionOptions
from lbrx.engine.device import warn_fallback
from lbrx.tensors.expr import Blocks
from lbrx.tensors.tensor import Tensor, tensor


def linear_on_metal(x: Floats, weight: Tensor) -> Floats | None:
    """[n, k] times a weight [m, k], transposed: [n, m]; None if kernels have no such coding."""
    coding = weight.expr.codec if isinstance(weight.expr, Blocks) else weight.dtype.name
    if coding not in CODING_NUMBERS:
        warn_fallback(f"there is no product with {coding} weights")
        return None
    result: Floats = products.linear(tensor(np.ascontiguousarray(x)), weight).to_device("cpu").numpy()
    return result


def attention_on_metal(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    options: AttentionOptions,
) -> Floats | None:
    """Attention as ``lbrx.ops.attention`` has it; None for heads that are larger than the kernels'."""
    if max(q.shape[2], v.shape[2]) > LARGEST_HEAD:
        warn_fallback(f"there is no attention with heads of more than {LARGEST_HEAD} elements")
        return None
    context = metal_context()
    queries, keys, values = (upload(context, np.ascontiguousarray(part)) for part in (q, k, v))
    result: Floats = download(context, attention(context, queries, keys, values, options, out_dtype="f32"))
    return result
