"""Products and attention on Metal, for arrays: what `linear` and `attention` do where the settings name that device.

Results are within the bounds that the kernels state, not the bits of the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.ops import products
from lbrx.devices.metal.ops.arrays import CODING_NUMBERS, download, upload
from lbrx.devices.metal.ops.attention import LARGEST_HEAD, attention
from lbrx.engine.arrays import Floats
from lbrx.engine.attention_options import AttentionOptions
from lbrx.engine.device import Heads, Linear
from lbrx.tensors.tensor import Tensor, tensor


def why_not_multiplied(work: Linear | Heads) -> str | None:
    """Why there is no kernel for a product or for attention."""
    if isinstance(work, Heads):
        too_large = work.size > LARGEST_HEAD
        return f"there is no attention with heads of more than {LARGEST_HEAD} elements" if too_large else None
    return None if work.weight_type in CODING_NUMBERS else f"there is no product with {work.weight_type} weights"


def linear_on_metal(x: Floats, weight: Tensor) -> Floats:
    """[n, k] times a weight [m, k], transposed: [n, m]."""
    result: Floats = products.linear(tensor(np.ascontiguousarray(x)), weight).to_device("cpu").numpy()
    return result


def attention_on_metal(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    options: AttentionOptions,
) -> Floats:
    """Attention as ``lbrx.ops.attention`` has it."""
    context = metal_context()
    queries, keys, values = (upload(context, np.ascontiguousarray(part)) for part in (q, k, v))
    result: Floats = download(context, attention(context, queries, keys, values, options, out_dtype="f32"))
    return result
