"""Run by the emulated Python at its start: kernels of lbrx are compiled outside of the emulator.

What cannot be compiled there is compiled here: kernels of tests, and those for other processors.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_NAME = "lbrx.devices.cpu.build.compiler"
_SOCKETS = os.environ.get("LBRX_ARM64_COMPILER")


class _Compiler(ModuleType):
    """Stands in for the module; the module itself, which imports Numba, is loaded if it is needed."""

    def compile_object(self, source: str, name: str) -> tuple[str, bytes]:
        return self._compiled("compile_object", source, name)

    def compile_function(self, module: str, name: str, arguments: int, symbol_name: str) -> tuple[str, bytes]:
        if module.startswith("lbrx."):
            return self._compiled("compile_function", module, name, arguments, symbol_name)
        return self._real().compile_function(module, name, arguments, symbol_name)

    def _compiled(self, function: str, *arguments: Any) -> tuple[str, bytes]:
        from arm64.compiler import request

        assert _SOCKETS is not None
        for_this_processor = "NUMBA_CPU_NAME" not in os.environ and "NUMBA_CPU_FEATURES" not in os.environ
        answer = request(_SOCKETS, function, arguments) if for_this_processor else None
        return answer or getattr(self._real(), function)(*arguments)

    def _real(self) -> Any:
        path = importlib.util.find_spec("lbrx.devices.cpu.build.native").origin.replace("native.py", "compiler.py")
        spec = importlib.util.spec_from_file_location(f"{_NAME}_itself", path)
        module = sys.modules.get(spec.name)
        if module is None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)


if _SOCKETS:
    sys.modules[_NAME] = _Compiler(_NAME)
