"""The runner's functions for Python, and libraries of kernels loaded into this process."""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.driver.scratch import scratch_directory
from lbrx.devices.metal.emulator.build import runner_library

MAX_BUFFERS = 31
_uint32x3 = ctypes.c_uint32 * 3
dispatch_lock = threading.RLock()  # the runner's state is global: one dispatch at a time


class MemoryRange(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Parameters(ctypes.Structure):
    """``parameters`` of runner/runner.h."""

    _fields_ = (
        ("grid", _uint32x3),
        ("threadgroup", _uint32x3),
        ("grid_is_threads", ctypes.c_int32),
        ("order", ctypes.c_int32),
        ("strict_barriers", ctypes.c_int32),
        ("strict_simdgroups", ctypes.c_int32),
        ("instrumented", ctypes.c_int32),
        ("flush_to_zero", ctypes.c_int32),
        ("threadgroup_limit_bytes", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("argument_count", ctypes.c_uint32),
        ("argument_bytes", ctypes.c_uint32 * MAX_BUFFERS),
        ("range_count", ctypes.c_uint32),
        ("ranges", MemoryRange * MAX_BUFFERS),
        ("threads", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
        ("simdgroup_operations", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("threadgroup_bytes", ctypes.c_uint32),
        ("fault_threadgroup", _uint32x3),
        ("fault_thread", _uint32x3),
        ("fault_signal", ctypes.c_int32),
        ("finding_count", ctypes.c_int32),
        ("fault_address", ctypes.c_uint64),
    )


class RunnerFinding(ctypes.Structure):
    """``finding`` of runner/runner.h."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("region", ctypes.c_int32),
        ("offset", ctypes.c_uint64),
        ("other_thread", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("other_threadgroup", ctypes.c_uint32),
        ("threadgroup", _uint32x3),
    )


class _FunctionConstant(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("floating", ctypes.c_double),
    )


@cache
def runner() -> Any:
    """The runner, loaded so that kernels find its functions."""
    library = ctypes.CDLL(str(runner_library()), mode=ctypes.RTLD_GLOBAL)
    address, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "msl_allocate": (address, (size, ctypes.POINTER(address), ctypes.POINTER(size))),
        "msl_guard_bytes": (size, ()),
        "msl_free": (None, (address, size)),
        "msl_protect": (ctypes.c_int, (address, size, ctypes.c_int)),
        "msl_fill_canary": (None, (address, size)),
        "msl_canary_intact": (ctypes.c_int, (address, size)),
        "msl_unbound": (address, (ctypes.POINTER(size),)),
        "msl_message": (ctypes.c_char_p, ()),
        "msl_set_constants": (None, (ctypes.POINTER(_FunctionConstant), ctypes.c_int)),
        "msl_dispatch": (ctypes.c_int, (address, ctypes.POINTER(address), ctypes.POINTER(Parameters))),
        "msl_findings": (ctypes.c_int, (ctypes.POINTER(RunnerFinding), ctypes.c_int)),
        "msl_region_variable": (ctypes.c_int32, (ctypes.c_int,)),
        "msl_locate": (
            ctypes.c_int,
            (ctypes.c_uint64, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int64)),
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class LoadedLibrary:
    """A copy of a library of kernels whose function constants have values: each specialisation is a copy."""

    def __init__(self, code: bytes, constants: Mapping[int, bool | int | float]) -> None:
        self._count = len(constants)
        self._values = (_FunctionConstant * max(1, self._count))()
        for i, (index, value) in enumerate(constants.items()):
            self._values[i] = _FunctionConstant(index, 0, int(value), float(value))
        with tempfile.NamedTemporaryFile(dir=scratch_directory(), suffix=".so", delete=False) as file:
            file.write(code)
        with dispatch_lock:
            self.use_constants()  # constants at program scope are initialised while the library is loaded
            try:
                self._library = ctypes.CDLL(file.name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            except OSError as error:
                raise ShaderError(f"a compiled shader cannot be loaded: {error}") from error
            finally:
                os.unlink(file.name)

    def use_constants(self) -> None:
        """Make the runner answer questions about function constants for this library."""
        runner().msl_set_constants(self._values, self._count)

    def address(self, symbol: str) -> int:
        return ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value or 0

    def sizes(self, symbol: str, parameter: int) -> tuple[int, int]:
        """Bytes and alignment of what a kernel's parameter points at."""
        function = getattr(self._library, symbol)
        function.restype, function.argtypes = ctypes.c_ulong, (ctypes.c_int, ctypes.c_int)
        return int(function(parameter, 0)), int(function(parameter, 1))

    def is_enabled(self, symbol: str, parameter: int) -> bool:
        """Whether the function constants turn a kernel's parameter on; one without a condition always is."""
        function = getattr(self._library, symbol)
        function.restype, function.argtypes = ctypes.c_int, (ctypes.c_int,)
        return bool(function(parameter))
