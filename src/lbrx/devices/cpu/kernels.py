"""Compiled kernels: in memory by program, on disk by source.

Numba caches only code that lies in a file, so the generated source is written to one, named by its digest, in the
user's cache directory. One process at a time compiles or loads an entry; a damaged entry is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from lbrx import system
from lbrx.devices.cpu.codegen import kernel_source
from lbrx.devices.cpu.library import LIBRARY, fingerprint
from lbrx.devices.cpu.slots import Slots
from lbrx.errors import KernelError
from lbrx.passes import Program

Kernel = Callable[[Any, Any, int, int], None]
_SIGNATURE = "void(int64[::1], float64[::1], int64, int64)"
_HEADER = """import numpy as np
from numba import njit

from lbrx.devices.cpu.library import {names}


@njit("{signature}", nogil=True, cache={cache}, error_model="numpy", boundscheck=False)
"""


class CompiledProgram:
    """A program with its kernel and the places of its arguments."""

    __slots__ = ("kernel", "program", "slots")

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program = program
        self.kernel = kernel
        self.slots = Slots(program)


_compiled: dict[Program, CompiledProgram] = {}
_compile_lock = threading.Lock()
compilations = 0  # programs that were not found in memory


def compiled(program: Program) -> CompiledProgram:
    """The kernel of a program, compiled at first use."""
    found = _compiled.get(program)
    if found is not None:
        return found
    with _compile_lock:
        if program not in _compiled:
            _compiled[program] = CompiledProgram(program, _load(kernel_source(program)))
        return _compiled[program]


def _load(body: str) -> Kernel:
    global compilations
    compilations += 1
    directory = _kernel_directory()
    source = _module_text(body, cache=directory is not None)
    if directory is None:
        return _from_text(source)
    digest = hashlib.sha256(f"{fingerprint()}{numba.__version__}{source}".encode()).hexdigest()[:32]
    path = directory / f"k{digest}.py"
    with system.file_lock(directory / f"k{digest}.lock"):
        _write_once(path, source)
        try:
            return _import(path)
        except Exception:
            for entry in (directory / "__pycache__").glob(f"k{digest}*"):
                entry.unlink(missing_ok=True)
        try:
            return _import(path)
        except Exception as error:
            raise KernelError(f"{path}: the generated kernel does not compile: {error}") from error


def _kernel_directory() -> Path | None:
    """The cache directory, or None where nothing can be written."""
    directory = system.cache_directory() / "kernels"
    try:
        (directory / "__pycache__").mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK) else None


def _module_text(body: str, cache: bool) -> str:
    names = ", ".join(sorted(name for name in LIBRARY if f"{name}(" in body))
    return _HEADER.format(names=names or "LIBRARY", signature=_SIGNATURE, cache=cache) + body


def _write_once(path: Path, source: str) -> None:
    """Put the source there unless it is there: Numba trusts a cache entry by the source's time stamp."""
    if path.exists() and path.read_text() == source:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(source)
    os.replace(file.name, path)


def _import(path: Path) -> Kernel:
    name = f"lbrx_kernel_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    kernel: Kernel = module.kernel
    return kernel


def _from_text(source: str) -> Kernel:
    namespace: dict[str, Any] = {}
    exec(compile(source, "<lbrx kernel>", "exec"), namespace)
    kernel: Kernel = namespace["kernel"]
    return kernel
