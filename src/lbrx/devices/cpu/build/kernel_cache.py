"""Compiled kernels: in memory by program, on disk as object code by digest.

Numba compiles a kernel once; its object code is kept in the user's cache directory and later loaded by LLVM alone,
so that a warm start imports neither Numba nor a compiler. An entry carries its own checksum and its key: a damaged or
foreign one is made anew. Processes that make the same entry at once replace it atomically by the same bytes. A
directory in which others can write is not used.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import re
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from lbrx.base import system
from lbrx.base.atomic_write import write_cache
from lbrx.devices.cpu.codegen.pass_source import kernel_source
from lbrx.devices.cpu.codegen.slots import Slots
from lbrx.devices.cpu.simd.processor import PROCESSOR
from lbrx.engine.program import FLAT, Program
from lbrx.errors import KernelError
from lbrx.settings import compile_listeners

_SLOW_OPERATIONS = {
    "exp": 1.0,
    "log": 1.2,
    "sin": 2.5,
    "cos": 2.5,
    "acos": 1.0,
    "tanh": 1.5,
    "erf": 1.5,
    "pow": 10.0,
    "floordiv": 5.0,
    "mod": 5.0,
    "div": 0.3,
    "sqrt": 0.3,
    "normal": 4.0,
}
Kernel = Callable[[int, int, int, int, int, int], int]
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 6)
_results = (ctypes.c_int64 * 2)()
RESULT_ADDRESS = ctypes.addressof(_results)  # Numba writes "None" there; nobody reads it
EXCEPTION_ADDRESS = RESULT_ADDRESS + 8
_MAGIC = b"lbrx kernel 1\n"
_UNUSED_SECONDS = 90 * 24 * 3600
_COMPILING_BYTES, _LINKING_BYTES = 128 << 20, 16 << 20  # more than any kernel takes; LLVM aborts without them
_PACKAGE = Path(__file__).parents[3]
_IMPORT = r"^from ((?:lbrx\b|{package}\b|\.)[\w.]*) import (\([^)]*\)|.*)"
_COMPILER = "lbrx.devices.cpu.build.compiler"  # imports the library of generated kernels


class CompiledProgram:
    """A program with its kernel and the slots of its arguments.

    A kernel is called with RESULT_ADDRESS, EXCEPTION_ADDRESS, the addresses of its int64 and float64 arguments, and the
    first and one past the last element. It returns 0 and runs without the interpreter lock.
    """

    __slots__ = ("address", "kernel", "nanoseconds", "program", "slots")

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program = program
        self.kernel = kernel
        self.address = address_of(kernel)
        self.slots = Slots(program)
        self.nanoseconds = _nanoseconds(program)


def _nanoseconds(program: Program) -> float:
    """Roughly what an element costs: enough to tell whether threads pay."""
    if program.mode != FLAT:
        return 2.0
    work = [leaf.origin for leaf in program.leaves] + [instruction.op for instruction in program.body]
    return 0.15 * len(program.sinks) + sum(_SLOW_OPERATIONS.get(name, 0.05) for name in work)


class Statistics:
    """What the cache did in this process."""

    compiled = 0
    loaded = 0


statistics = Statistics()
_programs: dict[Program, CompiledProgram] = {}
_lock = threading.Lock()


def compiled(program: Program) -> CompiledProgram:
    """The kernel of a program: from memory, from disk, or compiled now."""
    compiled_program = _programs.get(program)
    if compiled_program is not None:
        return compiled_program
    with _lock:
        if program not in _programs:
            _programs[program] = CompiledProgram(program, _kernel(kernel_source(program)))
        return _programs[program]


@cache
def native_function(module: str, name: str, arguments: int) -> Any:
    """A function of a kernel module over ``arguments`` int64 (addresses and sizes), compiled and cached alike.

    The module is imported, and with it Numba, only if the function has to be compiled. A change in the module or in
    any module that it imports makes the cached code stale. Call it with RESULT_ADDRESS and EXCEPTION_ADDRESS before its
    own arguments.
    """

    def compile_now(symbol_name: str) -> tuple[str, bytes]:
        from lbrx.devices.cpu.build.compiler import compile_function

        _announce()
        try:
            return compile_function(module, name, arguments, symbol_name)
        except MemoryError:
            raise
        except Exception as error:
            raise KernelError(f"the kernel {module}.{name} does not compile: {error}") from error

    with _lock:
        address = _address(f"{module}:{name}({arguments})\n{source_digest(module)}", compile_now)
    return ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (arguments + 2))(address)


@cache
def source_digest(module: str) -> str:
    """A digest of the source of a module and of what it imports from lbrx or its own package, directly or not.

    >>> source_digest("lbrx.devices.cpu.kernels.finite") == source_digest("lbrx.devices.cpu.kernels.norms")
    False
    """
    digest = hashlib.sha256()
    for name in imported_modules(module):
        digest.update(_module_path(name).read_bytes())
    return digest.hexdigest()


@cache
def imported_modules(module: str) -> tuple[str, ...]:
    """A module and all that it imports from lbrx or its own package, directly or not, in the order of their names."""
    names, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += _imports(name)
    return tuple(sorted(names))


@cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules that a module imports at its top, read from its source."""
    names = []
    own_path = _module_path(module)
    parent = module if own_path.name == "__init__.py" else module.rpartition(".")[0]
    pattern = re.compile(_IMPORT.format(package=module.partition(".")[0]), re.MULTILINE)
    for given, imported in pattern.findall(own_path.read_text()):
        package = importlib.util.resolve_name(given, parent)
        if _module_path(package).name != "__init__.py":
            names.append(package)
            continue
        modules = [f"{package}.{name.split()[0]}" for name in imported.strip("()").split(",") if name.strip()]
        names += [name if _is_own(name) or importlib.util.find_spec(name) else package for name in modules]
    return tuple(names)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE.name


def address_of(function: Any) -> int:
    """The address of a compiled function, for other compiled code to call."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@cache
def _module_path(module: str) -> Path:
    if _is_own(module):
        path = _PACKAGE.joinpath(*module.split(".")[1:])
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise KernelError(f"there is no module {module} to compile")
    return Path(spec.origin)


def _kernel(source: str) -> Kernel:
    return _FUNCTION(_address(source, lambda name: _compile(source, name)))


def _address(source: str, compile_now: Callable[[str], tuple[str, bytes]]) -> int:
    """The address of compiled code for a source: loaded from the cache, or compiled and kept there."""
    digest = hashlib.sha256((_environment() + source).encode()).hexdigest()[:40]
    path = system.cache_directory("kernels") / f"{digest}.o"
    entry = _read_entry(path)
    if entry is None or digest not in entry[0]:  # the symbol is the key: an entry may have another one's name
        system.require_address_space(_COMPILING_BYTES, "compiling a kernel")
        entry = compile_now(f"kernel_{digest}")
        _write_entry(path, *entry)
        statistics.compiled += 1
    else:
        statistics.loaded += 1
    return _link(*entry)


@cache
def _environment() -> str:
    """All that object code depends on besides its source: library, compiler and processor."""
    digest = hashlib.sha256(source_digest(_COMPILER).encode())
    numba = importlib.util.find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    digest.update(Path(numba.origin).with_name("_version.py").read_bytes())
    versions = (llvmlite.__version__, np.__version__)
    return "\n".join((digest.hexdigest(), *versions, *PROCESSOR, ""))


def _announce() -> None:
    for listener in compile_listeners:
        listener()


def _compile(source: str, name: str) -> tuple[str, bytes]:
    from lbrx.devices.cpu.build.compiler import compile_object

    _announce()
    try:
        return compile_object(source, name)
    except MemoryError:
        raise
    except Exception as error:
        raise KernelError(f"a generated kernel does not compile: {error}\n{source}") from error


def _read_entry(path: Path) -> tuple[str, bytes] | None:
    """The symbol and object code of an entry, or None if there is none that is whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MAGIC) + 32 :]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    (length,) = struct.unpack_from("<I", body)
    return body[4 : 4 + length].decode(), body[4 + length :]


def _write_entry(path: Path, symbol: str, code: bytes) -> None:
    """Keep an entry for the next start. Where the cache cannot be written, every start compiles."""
    name = symbol.encode()
    body = struct.pack("<I", len(name)) + name + code
    write_cache(path, _MAGIC + hashlib.sha256(body).digest() + body)
    with suppress(OSError):
        _remove_old_entries(path.parent)


@cache
def _remove_old_entries(directory: Path) -> None:
    """Once in a process, remove files that nobody has read for long, such as the kernels of earlier versions."""
    oldest = time.time() - _UNUSED_SECONDS
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            state = path.stat()
            if max(state.st_atime, state.st_mtime) < oldest:
                path.unlink()


@cache
def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _link(symbol: str, code: bytes) -> int:
    system.require_address_space(_LINKING_BYTES, "loading a kernel")
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise KernelError(f"the object code of a kernel has no symbol {symbol}")
    return int(address)
