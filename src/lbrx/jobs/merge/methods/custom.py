"""Methods from a user's Python file or from an installed package."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import wraps
from inspect import isfunction, isroutine, signature, unwrap
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from lbrx.errors import FileError, MemoryBudgetError, ShapeError, UsageError, nearest
from lbrx.jobs.merge.methods.method import line_of
from lbrx.registry import load_installed, package_of
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load_function(name: str, directory: str | os.PathLike[str] = ".") -> Callable[..., Tensor]:
    """The function of a file, as ``./file.py:function``; the file is run, and looked up from ``directory``.

    Whatever goes wrong in the file or in a call of the function is one error that begins with the file and its line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "mine.py").write_text("def first(models): return models[0]")
    ...     load_function("./mine.py:first", folder).__name__
    'first'
    """
    file_name, _, function_name = name.rpartition(":")
    path = Path(directory, file_name)
    module = _run_file(path)
    function = getattr(module, function_name, None)
    if function is None:
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{path}: has no function {function_name!r}{nearest(function_name, own)}")
    if not isroutine(unwrap(function) if callable(function) else function):
        raise UsageError(f"{path}: {function_name!r} is a {type(function).__name__}; expected a function")
    return _guarded(function, path, function_name)


def installed_function(entry: EntryPoint) -> Callable[..., Tensor]:
    """The function of an entry point; errors of a call begin with its file and line."""
    function = load_installed(entry)
    written = unwrap(function) if callable(function) else function
    if not isfunction(written):
        raise UsageError(
            f"{package_of(entry)}: {entry.value!r} is a {type(function).__name__}; expected a function for the merge "
            f"method {entry.name!r}"
        )
    return _guarded(function, Path(written.__code__.co_filename), entry.name)


def _guarded(function: Callable[..., Any], path: Path, name: str) -> Callable[..., Tensor]:
    """The function, with errors that say where in the user's file they come from."""

    @wraps(function)
    def call(*values: Any, **named: Any) -> Tensor:
        given = signature(function).bind(*values, **named).arguments
        inputs = [tensor for tensor in (*given["models"], given.get("base")) if tensor is not None]
        tensor = f" for tensor {inputs[0].name!r}" if inputs and inputs[0].name else ""
        try:
            result = function(*values, **named)
        except (FileError, MemoryBudgetError):  # of the inputs, not of the function
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(f"{_origin(error, path)}: {name}() fails{tensor}: {_described(error)}") from error
        where = f"{path}{line_of(function)}: {name}() returned"
        if not isinstance(result, Tensor):
            hint = " (is a 'return' missing?)" if result is None else ""
            found = "None" if result is None else f"a value of type {type(result).__name__}"
            raise UsageError(f"{where} {found}{tensor}; expected a Tensor{hint}")
        if inputs and result.shape != inputs[0].shape:
            expected = f"expected {inputs[0].shape}, that of its inputs"
            raise ShapeError(f"{where} the shape {result.shape}{tensor}; {expected}")
        return result

    return call


def _origin(error: BaseException, path: Path) -> str:
    """The file, with the line of it in which an error arose or which called what raised it."""
    own_name = str(path.absolute())
    if isinstance(error, SyntaxError) and error.filename == own_name and error.lineno is not None:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == own_name]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _described(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    first_line = next(iter(said.splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _run_file(path: Path) -> Any:
    if not path.is_file():
        raise FileError(f"{path}: the file of the merge method does not exist; expected a Python file")
    digest = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
    spec = importlib.util.spec_from_file_location(f"lbrx_method_{path.stem}_{digest}", path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise UsageError(f"{_origin(error, path)}: the file of the merge method fails: {_described(error)}") from error
    return module
