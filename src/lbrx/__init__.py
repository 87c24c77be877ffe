"""lbrx: language-model weights larger than memory, merged, quantized, converted, checked and computed with.

Opening and describing files needs no compiler; Numba is imported when the first value is computed.
"""

from lbrx.tensor import Tensor, TensorMetadata, arange, concat, full, normal, tensor, uniform, where

__all__ = ["Tensor", "TensorMetadata", "arange", "concat", "full", "normal", "tensor", "uniform", "where"]
