"""Fake libraries, functions, pipelines and archives. Kernels are compiled by the emulator if the device executes."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.errors import ShaderError
from support.fake_objc.runtime import Failed, Native, Proxy, Runtime

if TYPE_CHECKING:
    from support.fake_objc.metal import MTLDevice

_KERNEL = re.compile(r"(?:kernel void |host_name\(\")(\w+)")
_CONSTANT = re.compile(r"constant (\w+) (\w+) \[\[function_constant\((\d+)\)\]\]")
_TYPES = {"bool": (53, "?"), "int": (29, "i"), "uint": (33, "I"), "float": (3, "f"), "half": (16, "e")}
_FAIL_ON_ARCHIVE_MISS = 4


class MTLCompileOptionsBefore15(Native):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.macros: dict[str, str] = {}
        self.language = 0

    def setPreprocessorMacros_(self, macros: dict[str, str]) -> None:
        self.macros = macros

    def setLanguageVersion_(self, language: int) -> None:
        self.language = language

    def setFastMathEnabled_(self, enabled: bool) -> None:
        assert not enabled


class MTLCompileOptions(MTLCompileOptionsBefore15):
    def setMathMode_(self, mode: int) -> None:
        assert mode == 0

    def setMathFloatingPointFunctions_(self, functions: int) -> None:
        assert functions == 1


class MTLFunctionConstant(Native):
    def __init__(self, runtime: Runtime, number: int) -> None:
        super().__init__(runtime)
        self.number = number

    def type(self) -> int:
        return self.number


class MTLFunctionConstantValues(Native):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.values: dict[str, Any] = {}

    def setConstantValue_type_withName_(self, data: Any, number: int, name: str) -> None:
        code = dict(_TYPES.values())[number]
        (self.values[name],) = struct.unpack(code, bytes(data))


class MTLLibrary(Native):
    """Kernels of a source. ``names`` maps those of a file to those of its source."""

    def __init__(self, device: MTLDevice, source: str, macros: dict[str, str], names: dict[str, str] | None = None):
        super().__init__(device.runtime)
        self.device, self.source, self.macros = device, source, macros
        found = dict.fromkeys(_KERNEL.findall(source))
        self.names = names or {name: name for name in found}
        self.constants = {name: _TYPES[kind][0] for kind, name, _ in _CONSTANT.findall(source)}
        self._emulated: Any = None

    def functionNames(self) -> tuple[str, ...]:
        return tuple(self.names)

    def newFunctionWithName_(self, name: str) -> MTLFunction | None:
        return MTLFunction(self, name, {}) if name in self.functionNames() else None

    def newFunctionWithName_constantValues_error_(
        self, name: str, values: MTLFunctionConstantValues, _error: None
    ) -> MTLFunction | Failed:
        if name not in self.functionNames():
            return Failed(f"no function {name}")
        return MTLFunction(self, name, dict(values.values))

    def emulated(self) -> Any:
        if self._emulated is None:
            assert self.device.emulator is not None
            options = CompileOptions(tuple(self.macros.items()))
            self._emulated = self.device.emulator.compile(self.source, options)
        return self._emulated


class MTLFunction(Native):
    def __init__(self, library: MTLLibrary, name: str, values: dict[str, Any]) -> None:
        super().__init__(library.runtime)
        self.library, self.kernel, self.values = library, name, values
        self.hold(library)

    @property
    def key(self) -> str:
        return f"{self.kernel} {sorted(self.values.items())}"

    def functionConstantsDictionary(self) -> dict[str, Proxy]:
        constants = {}
        for name, number in self.library.constants.items():
            constant = MTLFunctionConstant(self.runtime, number).autorelease()
            constants[name] = Proxy(constant, owned=False)
        return constants


class MTLComputePipelineDescriptor(Native):
    function: MTLFunction
    archives: tuple[MTLBinaryArchive, ...] = ()

    def setComputeFunction_(self, function: MTLFunction) -> None:
        self.function = self.hold(function)

    def setBinaryArchives_(self, archives: list[MTLBinaryArchive]) -> None:
        self.archives = tuple(self.hold(archive) for archive in archives)


class MTLComputePipelineState(Native):
    def __init__(self, function: MTLFunction, emulated: Any) -> None:
        super().__init__(function.runtime)
        self.kernel, self.emulated = function.kernel, emulated

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return 1024

    def threadExecutionWidth(self) -> int:
        return 32


class MTLBinaryArchiveDescriptor(Native):
    path: str | None = None

    def setUrl_(self, url: Any) -> None:
        self.path = url.path


class MTLBinaryArchive(Native):
    """Names of kernels whose machine code it has."""

    def __init__(self, device: MTLDevice, keys: list[str]) -> None:
        super().__init__(device.runtime)
        self.device, self.keys = device, keys

    @classmethod
    def opened(cls, device: MTLDevice, descriptor: MTLBinaryArchiveDescriptor) -> MTLBinaryArchive | Failed:
        if descriptor.path is None:
            return cls(device, [])
        try:
            return cls(device, json.loads(Path(descriptor.path).read_text()))
        except ValueError:
            return Failed("not an archive")

    def addComputePipelineFunctionsWithDescriptor_error_(self, descriptor: Any, _error: None) -> bool:
        if descriptor.function.key not in self.keys:
            self.device.compilations += 1
            self.keys.append(descriptor.function.key)
        return True

    def serializeToURL_error_(self, url: Any, _error: None) -> bool:
        Path(url.path).write_text(json.dumps(self.keys))
        return True


def compiled_library(device: MTLDevice, source: str, options: MTLCompileOptionsBefore15) -> MTLLibrary | Failed:
    if "does not compile" in source:
        return Failed("program_source:3:5: error: expected ';'")
    device.libraries_compiled += 1
    library = MTLLibrary(device, source, dict(options.macros))
    if device.executes:
        try:
            library.names = {name: name for name in library.emulated().function_names}
        except ShaderError as error:
            library.release()
            return Failed(str(error))
    return library


def library_from_file(device: MTLDevice, path: str) -> MTLLibrary | Failed:
    """A file that a fake `xcrun metallib` wrote: the names of its kernels."""
    try:
        names = json.loads(Path(path).read_text())["kernels"]
    except (OSError, ValueError, KeyError) as error:
        return Failed(f"{path}: {error}")
    return MTLLibrary(device, "", {}, {name: name for name in names})


def pipeline_state(
    device: MTLDevice, descriptor: MTLComputePipelineDescriptor, options: int
) -> MTLComputePipelineState | Failed:
    function = descriptor.function
    if not any(function.key in archive.keys for archive in descriptor.archives):
        if options & _FAIL_ON_ARCHIVE_MISS:
            return Failed("no archive has the function")
        device.compilations += 1
    emulated = function.library.emulated().pipeline(function.kernel, function.values) if device.executes else None
    return MTLComputePipelineState(function, emulated)
