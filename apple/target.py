"""Makes Numba on any machine compile for Apple's processors, in this process only.

Call `compile_for` before lbrx is imported: the package asks for the processor when it is imported. From then on kernels
are objects in Mach-O format with the code that a Mac would get, or objects for Linux on such a processor.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import llvmlite.binding as llvm

TRIPLE = "arm64-apple-macosx14.0.0"
LINUX_TRIPLE = "aarch64-unknown-linux-gnu"
CPUS = ("apple-m1", "apple-m2", "apple-m3", "apple-m4")


class _Features(dict[str, bool]):
    """No features, as on macOS: LLVM takes those of the processor's name."""

    def flatten(self, sort: bool = True) -> str:  # noqa: ARG002
        return ""


@cache
def machine_of(cpu: str, triple: str = TRIPLE, features: str = "") -> Any:
    """LLVM's description of a processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


def compile_for(cpu: str, triple: str = TRIPLE, features: str = "") -> None:
    """Compile for a processor such as ``"apple-m1"`` from now on."""
    platform.machine = lambda: "arm64"
    llvm.get_host_cpu_features = lambda: _Features()
    from llvmlite import ir
    from numba.core import cgutils, codegen

    def start(self: Any, module: Any) -> None:
        host = llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)
        self._tm_features = features
        self._tm = machine_of(cpu, triple, features)
        self._engine = codegen.JitEngine(llvm.create_mcjit_compiler(module, host))
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)
        self._loopvect, self._opt_level = False, 0

    def empty_module(self: Any, name: str) -> Any:
        module = ir.Module(cgutils.normalize_ir_text(name))
        module.triple = triple
        if self._data_layout:
            module.data_layout = self._data_layout
        return module

    def no_address(self: Any, _name: str) -> int:
        self._ensure_finalized()
        return 0

    def nothing(*_: Any) -> None:
        pass

    codegen.CPUCodegen._init = start
    codegen.CPUCodegen._create_empty_module = empty_module
    codegen.CPUCodegen._scan_and_fix_unresolved_refs = nothing
    codegen.JITCPUCodegen._add_module = nothing
    codegen.JITCPUCodegen.set_env = nothing
    codegen.JITCodeLibrary.get_pointer_to_function = no_address
    codegen.JitEngine._load_defined_symbols = nothing
