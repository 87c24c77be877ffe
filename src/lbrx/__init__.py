"""lbrx: language-model weights larger than memory, merged, quantized, converted, checked and computed with.

Opening and describing files needs no compiler; Numba is imported when the first value is computed.
"""

import importlib as _importlib
import typing as _typing

from lbrx import memory
from lbrx.checkpoint import Checkpoint
from lbrx.checkpoint import open_checkpoint as open
from lbrx.creation import arange, concat, evaluate, full, normal, uniform, where
from lbrx.dtypes import DType, dtype
from lbrx.errors import (
    DTypeError,
    FileError,
    FormatError,
    KernelError,
    LbrxError,
    MemoryBudgetError,
    ShapeError,
    TensorNotFound,
    TruncatedError,
    UsageError,
)
from lbrx.output import Progress, save
from lbrx.quantization import QuantizationInfo
from lbrx.settings import using
from lbrx.shape import Layout, Shape
from lbrx.storage import CpuStorage, MmapStorage, Storage
from lbrx.tensor import Tensor, TensorMetadata, tensor

if _typing.TYPE_CHECKING:
    from lbrx.compute.shards import gather
    from lbrx.conversion.converting import convert
    from lbrx.devices.explain import explain
    from lbrx.merging import merge
    from lbrx.models import open_model
    from lbrx.quantizing import quantize
    from lbrx.scoring import score
    from lbrx.verifying import verify

__all__ = [
    "Checkpoint",
    "CpuStorage",
    "DType",
    "DTypeError",
    "FileError",
    "FormatError",
    "KernelError",
    "Layout",
    "LbrxError",
    "MemoryBudgetError",
    "MmapStorage",
    "Progress",
    "QuantizationInfo",
    "Shape",
    "ShapeError",
    "Storage",
    "Tensor",
    "TensorMetadata",
    "TensorNotFound",
    "TruncatedError",
    "UsageError",
    "arange",
    "concat",
    "convert",
    "dtype",
    "evaluate",
    "explain",
    "full",
    "gather",
    "memory",
    "merge",
    "normal",
    "open",
    "open_model",
    "quantize",
    "save",
    "score",
    "tensor",
    "uniform",
    "using",
    "verify",
    "where",
]


_LATE = {
    "convert": "lbrx.conversion.converting",
    "explain": "lbrx.devices.explain",
    "gather": "lbrx.compute.shards",
    "merge": "lbrx.merging",
    "open_model": "lbrx.models",
    "quantize": "lbrx.quantizing",
    "score": "lbrx.scoring",
    "verify": "lbrx.verifying",
}


def __getattr__(name: str) -> _typing.Any:
    """What brings much with it is imported when it is first asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'lbrx' has no attribute {name!r}")
    found = getattr(_importlib.import_module(_LATE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
