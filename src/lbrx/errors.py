"""Every error that lbrx raises on purpose.

LbrxError
├── FileError           a file or directory cannot be read, mapped or written
│   ├── FormatError     the bytes are not what their format demands
│   └── TruncatedError  a file became shorter after it was opened
├── TensorNotFound      a name is not in a checkpoint
├── ShapeError          shapes do not fit together
├── DTypeError          an unknown dtype, or one that an operation does not take
├── MemoryBudgetError   the work does not fit into the byte budget
├── KernelError         a generated kernel could not be compiled or loaded
│   └── ShaderError     a shader does not compile, or has no such function (in lbrx.devices.metal.errors)
├── MetalError          the device cannot do what was asked (there as well)
├── NonFiniteError      a merge gave NaN or infinity and was told not to (in lbrx.files.output.nonfinite)
└── UsageError          an argument or option has a value that makes no sense
    └── RecipeError     a merge recipe is wrong (in lbrx.jobs.merge.recipe)

A message says where, what, and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable


class LbrxError(Exception):
    """The base of all errors of lbrx."""


class FileError(LbrxError):
    """A file or directory cannot be read, mapped or written."""


class FormatError(FileError):
    """The bytes of a file are not what their format demands."""


class TruncatedError(FileError):
    """A file became shorter after it was opened."""


class TensorNotFound(LbrxError, KeyError):
    """A name is not in a checkpoint."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ShapeError(LbrxError, ValueError):
    """Shapes do not fit together."""


class DTypeError(LbrxError, TypeError):
    """An unknown dtype, or one that an operation does not take."""


class MemoryBudgetError(LbrxError, MemoryError):
    """The work does not fit into the byte budget."""


class KernelError(LbrxError):
    """A generated kernel could not be compiled or loaded."""


class UsageError(LbrxError, ValueError):
    """An argument or option has a value that makes no sense."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'slerp'?``, or an empty string."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""
