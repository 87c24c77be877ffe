"""How much of a tensor each coding loses, measured on some of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.file_types import FLOAT_TYPES
from lbrx.jobs.imatrix.files import Importance
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.tensor import Tensor, tensor

SAMPLE_ROWS = 64
_SAMPLE_MATRICES = 16
_WORST_ERROR = 1e30

Floats = npt.NDArray[np.float32]
Decoded = Callable[[Tensor, str, Importance | None], Floats]


def spread(count: int, wanted: int) -> list[int]:
    """At most so many numbers below ``count``, evenly spread.

    >>> spread(100, 4), spread(3, 4)
    ([12, 37, 62, 87], [0, 1, 2])
    """
    chosen = min(count, wanted)
    return [(2 * number + 1) * count // (2 * chosen) for number in range(chosen)]


def sample_rows(planned: PlannedTensor, importance: Importance | None) -> tuple[Floats, Importance | None]:
    """Some rows of a tensor as (matrices, rows, columns), and the importances of their columns for each matrix.

    Of a stack of matrices several are looked at, as many rows of each.
    """
    rows, columns = planned.shape[-2], planned.shape[-1]
    matrices = spread(math.prod(planned.shape[:-2]), _SAMPLE_MATRICES)
    chosen = spread(rows, max(SAMPLE_ROWS // len(matrices), 1))
    numbers = [matrix * rows + row for matrix in matrices for row in chosen]
    values = planned.make().dequantize()
    if len(planned.shape) > 2:
        values = values.reshape(-1, columns)
    sampled = values.rows(numbers).to("f32").numpy().reshape(len(matrices), len(chosen), columns)
    if not np.isfinite(sampled).all():
        raise UsageError(f"tensor {planned.name!r} has values that are not finite; types cannot be chosen by error")
    return sampled, None if importance is None else importance[matrices]


def relative_errors(
    values: Floats, importance: Importance | None, types: Sequence[str], decoded: Decoded | None = None
) -> list[float]:
    """The squared error of each type as a share of the sum of squares, both weighted by importance.

    ``decoded`` returns what is left of a sample in a type; by default for types of GGUF. A type that cannot hold the
    values at all has a very large error.

    >>> values = np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 1, 512)
    >>> q8, q4 = relative_errors(values, None, ["q8_0", "q4_0"])
    >>> q8 < 1e-4 < q4
    True
    """
    weights = np.float64(1.0) if importance is None else importance[:, None, :].astype(np.float64)
    total = float((weights * np.square(values, dtype=np.float64)).sum())
    if total == 0.0:
        return [0.0 for _ in types]
    source = tensor(values)
    left = decoded or _decoded
    differences = (left(source, name, importance) - values for name in types)
    errors = [float((weights * np.square(difference, dtype=np.float64)).sum()) / total for difference in differences]
    return [error if error < _WORST_ERROR else _WORST_ERROR for error in errors]  # NaN is less than nothing


def _decoded(source: Tensor, type_name: str, importance: Importance | None) -> Floats:
    """The values that are left of a sample."""
    if type_name in FLOAT_TYPES:
        coded = source.to(type_name).to("f32")
    else:
        coded = source.quantize(type_name, importance if codec(type_name).takes_imatrix else None)
    result: Floats = coded.dequantize().numpy()
    return result
