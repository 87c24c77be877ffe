"""The errors that lbrx raises on purpose.

LbrxError
├── FileError           a file or directory cannot be read, mapped or written
│   ├── FormatError     the bytes of a file do not follow its format
│   └── TruncatedError  a file became shorter after it was opened
├── TensorNotFound      a checkpoint has no tensor of this name
├── ShapeError          shapes do not match
├── DTypeError          an unknown dtype, or one that an operation does not support
├── MemoryBudgetError   the work does not fit into the byte budget
├── KernelError         a generated kernel could not be compiled or loaded
│   └── ShaderError     a shader does not compile or lacks a function (in lbrx.devices.metal.errors)
├── MetalError          the GPU cannot do what was requested (in lbrx.devices.metal.errors)
├── NonFiniteError      a merge produced NaN or infinity in strict mode (in lbrx.files.output.nonfinite)
└── UsageError          an argument or option has an invalid value
    └── RecipeError     a merge recipe is wrong (in lbrx.jobs.merge.recipe)

A message says where the error is, what it is, and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable


class LbrxError(Exception):
    """The base class of all lbrx errors."""


class FileError(LbrxError):
    """A file or directory cannot be read, mapped or written."""


class FormatError(FileError):
    """The bytes of a file do not follow its format."""


class TruncatedError(FileError):
    """A file became shorter after it was opened."""


class TensorNotFound(LbrxError, KeyError):
    """A checkpoint has no tensor of this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ShapeError(LbrxError, ValueError):
    """Shapes do not match."""


class DTypeError(LbrxError, TypeError):
    """An unknown dtype, or one that an operation does not support."""


class MemoryBudgetError(LbrxError, MemoryError):
    """The work does not fit into the byte budget."""


class KernelError(LbrxError):
    """A generated kernel could not be compiled or loaded."""


class UsageError(LbrxError, ValueError):
    """An argument or option has an invalid value."""


def nearest(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """Return a hint such as ``; did you mean 'slerp'?``, or an empty string if nothing is as similar."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(known), n=1, cutoff=similarity)
    return f"; did you mean {matches[0]!r}?" if matches else ""
