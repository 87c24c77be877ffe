"""Neural-network operations: products with mapped, 16-bit and quantized weights, attention, norms and more.

>>> import numpy as np, lbrx
>>> from lbrx import ops
>>> weight = lbrx.tensor(np.eye(32, dtype=np.float32)).quantize("q8_0").realize()
>>> ops.linear(np.ones((1, 32), np.float32), weight).shape
(1, 32)
"""

from lbrx.ops.activations import gelu, gelu_mul, relu, relu_squared, silu, silu_mul, softcap
from lbrx.ops.attention import attention, cached_attention
from lbrx.ops.embedding import embedding
from lbrx.ops.linear import linear
from lbrx.ops.matmul import matmul
from lbrx.ops.norms import layer_norm, rms_norm, softmax
from lbrx.ops.recurrences import causal_conv, gated_delta, selective_scan, state_space
from lbrx.ops.rope import apply_rope, rotate
from lbrx.ops.shards import column_parallel_linear, gather, matrix, row_parallel_linear, shard
from lbrx.tensors.rope import RopeConfig, RopeFrequencies, rope_frequencies

__all__ = [
    "RopeConfig",
    "RopeFrequencies",
    "apply_rope",
    "attention",
    "cached_attention",
    "causal_conv",
    "column_parallel_linear",
    "embedding",
    "gated_delta",
    "gather",
    "gelu",
    "gelu_mul",
    "layer_norm",
    "linear",
    "matmul",
    "matrix",
    "relu",
    "relu_squared",
    "rms_norm",
    "rope_frequencies",
    "rotate",
    "row_parallel_linear",
    "selective_scan",
    "shard",
    "silu",
    "silu_mul",
    "softcap",
    "softmax",
    "state_space",
]
