"""Computing with models on the CPU: products with mapped, half and quantized weights, attention, norms and the rest.

>>> import numpy as np, lbrx
>>> from lbrx import compute
>>> weight = lbrx.tensor(np.eye(32, dtype=np.float32)).quantize("q8_0").realize()
>>> compute.linear(np.ones((1, 32), np.float32), weight).shape
(1, 32)
"""

from lbrx.compute.activations import gelu, gelu_mul, silu, silu_mul, softcap
from lbrx.compute.embeddings import embedding
from lbrx.compute.fused_attention import attention
from lbrx.compute.linear_products import linear
from lbrx.compute.matrix_products import matmul
from lbrx.compute.norms import layer_norm, rms_norm, softmax
from lbrx.compute.rope import RopeConfig, RopeFrequencies, RopeRecord, apply_rope, rope_frequencies
from lbrx.compute.shards import column_parallel_linear, gather, matrix, row_parallel_linear, shard

__all__ = [
    "RopeConfig",
    "RopeFrequencies",
    "RopeRecord",
    "apply_rope",
    "attention",
    "column_parallel_linear",
    "embedding",
    "gather",
    "gelu",
    "gelu_mul",
    "layer_norm",
    "linear",
    "matmul",
    "matrix",
    "rms_norm",
    "rope_frequencies",
    "row_parallel_linear",
    "shard",
    "silu",
    "silu_mul",
    "softcap",
    "softmax",
]
