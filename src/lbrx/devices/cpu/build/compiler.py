"""Compiling generated source to native code with Numba. Imported only when a kernel is not in the cache."""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, types

from lbrx.devices.cpu.build.library import LIBRARY
from lbrx.errors import KernelError


def compile_object(source: str, name: str) -> tuple[str, bytes]:
    """The symbol and the object code of the function ``kernel`` in ``source``, compiled under ``name``.

    Without wrappers for Python or C the object code needs nothing of Numba's run time. What remains is Numba's own
    calling convention: addresses for a result and for an exception come before the arguments, a status is returned.
    """
    namespace: dict[str, Any] = {"np": np, **LIBRARY}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    function = namespace["kernel"]
    function.__name__ = function.__qualname__ = name
    return _object_code(function, 4)


def compile_function(module: str, name: str, arguments: int, symbol_name: str) -> tuple[str, bytes]:
    """The symbol and the object code of a function of a module, over so many int64."""
    written = getattr(importlib.import_module(module), name)
    closure = written.__closure__
    function = FunctionType(written.__code__, written.__globals__, symbol_name, written.__defaults__, closure)
    function.__qualname__ = symbol_name
    return _object_code(function, arguments)


def _object_code(function: Any, arguments: int) -> tuple[str, bytes]:
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "nogil": True, "error_model": "numpy"}
    dispatcher: Any = njit(types.void(*[types.int64] * arguments), **options)(function)
    (built,) = dispatcher.overloads.values()
    module, symbol = built.library._final_module, built.fndesc.llvm_func_name
    _check_self_contained(module)
    _hide_all_but(module, symbol)
    return symbol, built.library.codegen._tm.emit_object(module)


def _hide_all_but(module: Any, symbol: str) -> None:
    """Leave one name for the linker to see.

    Numba numbers functions anew in every process, so two kernels compiled by different processes may have different
    functions of the same name; linked side by side, one would call those of the other.
    """
    for defined in (*module.functions, *module.global_variables):
        if not defined.is_declaration and defined.name != symbol:
            defined.linkage = "internal"


def _check_self_contained(module: Any) -> None:
    """A symbol of Numba's or Python's run time would end the process when the code is linked without them."""
    for function in module.functions:
        if function.is_declaration and function.name.startswith(("numba", "NRT", "Py", "_Py")):
            raise KernelError(f"a kernel calls {function.name}, which is not there at a warm start")
