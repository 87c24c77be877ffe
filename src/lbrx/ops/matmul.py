"""matmul: products of tensors and arrays of any shape, with NumPy's rules for axes."""

from __future__ import annotations

import numpy as np

from lbrx.engine.arrays import Floats, Values
from lbrx.engine.device import CPU, device, multiply
from lbrx.tensors.shape import product_shape
from lbrx.tensors.tensor import Tensor


def matmul(a: Values, b: Values, *, transpose_b: bool = False) -> Floats:
    """Multiply a [..., n, k] by b [..., k, m] in f32. With ``transpose_b``, b is [..., m, k], as models store weights.

    Leading axes broadcast. A vector counts as one row (a) or one column (b), and the result omits its axis. The error
    of a result is at most k 2**-23 of the sum of the magnitudes of its products.

    >>> import lbrx
    >>> matmul(np.ones((2, 3), np.float32), lbrx.tensor(np.arange(6, dtype=np.float16).reshape(3, 2)))
    array([[6., 9.],
           [6., 9.]], dtype=float32)
    """
    left, right = (values if isinstance(values, Tensor) else np.asarray(values) for values in (a, b))
    shape = product_shape(left.shape, right.shape, transpose_b)
    storage = multiply(left, right, transpose_b)
    if storage.device != CPU:
        storage = device(storage.device).load(storage)
    return storage.read_at(0, storage.nbytes).view(np.float32).reshape(shape)
