"""lbrx: language-model weights larger than memory, merged, quantized, converted, checked and computed with.

A name is imported when it is first asked for: opening and describing files needs no compiler, and a command imports
what it uses. Numba is imported when the first value is computed.
"""

import importlib as _importlib
import sys as _sys
import types as _types
import typing as _typing

from lbrx.late import late_names as _late_names

if _typing.TYPE_CHECKING:
    from lbrx import memory
    from lbrx.checkpoint import Checkpoint
    from lbrx.checkpoint import open_checkpoint as open
    from lbrx.compute.shards import gather
    from lbrx.conversion.converting import convert
    from lbrx.creation import arange, concat, evaluate, full, normal, uniform, where
    from lbrx.devices.explain import explain
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
    from lbrx.merging import merge
    from lbrx.models import open_model
    from lbrx.output import Progress, save
    from lbrx.quantization import QuantizationInfo
    from lbrx.quantizing import quantize
    from lbrx.scoring import score
    from lbrx.settings import using
    from lbrx.shape import Layout, Shape
    from lbrx.storage import CpuStorage, MmapStorage, Storage
    from lbrx.tensor import Tensor, TensorMetadata, tensor
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


__getattr__ = _late_names(
    __name__,
    {
        "lbrx.checkpoint": ("Checkpoint", "open=open_checkpoint"),
        "lbrx.compute.shards": ("gather",),
        "lbrx.conversion.converting": ("convert",),
        "lbrx.creation": ("arange", "concat", "evaluate", "full", "normal", "uniform", "where"),
        "lbrx.devices.explain": ("explain",),
        "lbrx.dtypes": ("DType", "dtype"),
        "lbrx.errors": (
            "DTypeError",
            "FileError",
            "FormatError",
            "KernelError",
            "LbrxError",
            "MemoryBudgetError",
            "ShapeError",
            "TensorNotFound",
            "TruncatedError",
            "UsageError",
        ),
        "lbrx.merging": ("merge",),
        "lbrx.models": ("open_model",),
        "lbrx.output": ("Progress", "save"),
        "lbrx.quantization": ("QuantizationInfo",),
        "lbrx.quantizing": ("quantize",),
        "lbrx.scoring": ("score",),
        "lbrx.settings": ("using",),
        "lbrx.shape": ("Layout", "Shape"),
        "lbrx.storage": ("CpuStorage", "MmapStorage", "Storage"),
        "lbrx.tensor": ("Tensor", "TensorMetadata"),
        "lbrx.verifying": ("verify",),
    },
)


class _Package(_types.ModuleType):
    """``lbrx.tensor`` is the function, whenever the module of that name is imported."""

    @property
    def tensor(self) -> _typing.Any:
        from lbrx.tensor import tensor

        return tensor

    @tensor.setter
    def tensor(self, module: _types.ModuleType) -> None:
        """An import puts the module here."""

    def __reduce__(self) -> tuple[_typing.Any, ...]:
        """As modules are pickled that functions for other processes refer to: by name."""
        return _importlib.import_module, (self.__name__,)


_sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
