"""Methods from a user's Python file: the function, and its signature as the description of its parameters."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import typing
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, isroutine, signature, unwrap
from pathlib import Path
from traceback import extract_tb
from types import NoneType, UnionType
from typing import Any

from lbrx.errors import FileError, MemoryBudgetError, ShapeError, UsageError, nearest
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.recipe.parameters import REQUIRED, BasePolicy, MethodParameter, MethodSpec, Required
from lbrx.jobs.merge.recipe.values import ParameterType, Scalar
from lbrx.tensors.tensor import Tensor

_TYPES: dict[Any, ParameterType] = {float: "float", int: "int", bool: "bool", str: "str"}
_SEQUENCES = (Sequence, list, tuple)


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
        where = f"{path}{_line_of(function)}: {name}() returned"
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


def _line_of(function: Callable[..., Any]) -> str:
    """Where a function begins, as ``:12``; nothing for a callable object."""
    code = getattr(unwrap(function), "__code__", None)
    return "" if code is None else f":{code.co_firstlineno}"


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


def spec_of(function: Callable[..., Tensor], name: str) -> MethodSpec:
    """What a method takes, from its function's signature.

    >>> def blend(models: Sequence[Tensor], base: Tensor | None = None, *, t: float = 0.5) -> Tensor: ...
    >>> spec = spec_of(blend, "./mine.py:blend")
    >>> spec.needs_base, spec.find("t").default
    ('optional', 0.5)
    """
    file_name, _, function_name = name.rpartition(":")
    where = f"{file_name}{_line_of(function)}: {function_name}()"
    parameters = signature(function).parameters
    try:
        types = typing.get_type_hints(function)
    except Exception as error:
        raise UsageError(f"{where}: the types of its parameters cannot be read: {error}") from error
    if "models" not in parameters:
        found = ", ".join(parameters) or "no parameters"
        raise UsageError(f"{where} takes {found}; expected a parameter 'models', the tensors to merge")
    for parameter in parameters.values():
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise UsageError(f"{where}: {str(parameter)!r} cannot be passed by keyword; expected named parameters only")
    _check_context(types.get("context"), where)
    return MethodSpec(
        name,
        tuple(
            _parameter(parameter, types.get(parameter.name), where)
            for parameter in parameters.values()
            if parameter.name not in ("models", "base", "context")
        ),
        _base_policy(parameters.get("base"), types.get("base")),
    )


def _check_context(annotation: Any, where: str) -> None:
    if annotation not in (None, MergeContext):
        raise UsageError(f"{where}: 'context' has the type {_type_name(annotation)}; expected MergeContext")


def _base_policy(parameter: Parameter | None, annotation: Any) -> BasePolicy:
    if parameter is None:
        return "ignored"
    if parameter.default is None or _without_none(annotation) is not annotation:
        return "optional"
    return "required"


def _parameter(parameter: Parameter, annotation: Any, function: str) -> MethodParameter:
    where = f"{function}: parameter {parameter.name!r}"
    default: Any = REQUIRED if parameter.default is Parameter.empty else parameter.default
    if annotation is None and not isinstance(default, Required):
        annotation = Sequence[type(default[0])] if _is_single(default) else type(default)  # type: ignore[misc]
    item = _item_type(annotation)
    parameter_type = _TYPES.get(_without_none(annotation if item is None else item))
    if parameter_type is None:
        found = "no type" if annotation is None else f"the type {_type_name(annotation)}"
        raise UsageError(f"{where} has {found}; expected float, int, bool or str, or a Sequence of one of them")
    if item is not None and not isinstance(default, Required):
        if not _is_single(default):
            raise UsageError(f"{where} has the default {default!r}; expected a tuple of the one value for each model")
        default = default[0]
    return MethodParameter(
        "lambda" if parameter.name == "lambda_" else parameter.name,
        parameter_type,
        _checked_default(default, parameter_type, where),
        per_model=item is not None,
        gradient=parameter_type != "int",
    )


def _is_single(default: object) -> bool:
    return isinstance(default, tuple | list) and len(default) == 1


def _checked_default(default: Any, parameter_type: ParameterType, where: str) -> Scalar | Required | None:
    if default is None or isinstance(default, Required):
        return default
    expected = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}[parameter_type]
    if not isinstance(default, expected) or (isinstance(default, bool) and parameter_type != "bool"):
        raise UsageError(f"{where} has the default {default!r}; expected one of type {parameter_type}")
    return float(default) if parameter_type == "float" else default


def _item_type(annotation: Any) -> Any:
    """The type of a sequence's items, or None if the annotation is not a sequence."""
    arguments = typing.get_args(annotation)
    return arguments[0] if typing.get_origin(annotation) in _SEQUENCES and arguments else None


def _without_none(annotation: Any) -> Any:
    """``T`` of ``T | None``; anything else as it is."""
    if typing.get_origin(annotation) in (UnionType, typing.Union):
        rest = [item for item in typing.get_args(annotation) if item is not NoneType]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
