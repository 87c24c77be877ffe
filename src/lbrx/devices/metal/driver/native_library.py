"""Compiled shaders of an Apple GPU: libraries, pipelines, and archives that keep machine code for the next start."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.devices.metal.driver import Constants
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.driver.pyobjc import autorelease_pool, error_text, file_url
from lbrx.devices.metal.driver.scratch import scratch_directory

if TYPE_CHECKING:
    from lbrx.devices.metal.driver.native import NativeDriver

_FAIL_ON_ARCHIVE_MISS = 4  # MTLPipelineOptionFailOnBinaryArchiveMiss
_CONSTANT_FORMATS = {53: "?", 45: "b", 49: "B", 37: "h", 41: "H", 29: "i", 33: "I", 81: "q", 85: "Q", 16: "e", 3: "f"}


class NativePipeline:
    """An MTLComputePipelineState."""

    def __init__(self, name: str, state: Any) -> None:
        self.name = name
        self.state = state
        self.max_threads = int(state.maxTotalThreadsPerThreadgroup())
        self.simd_width = int(state.threadExecutionWidth())


class NativeLibrary:
    """An MTLLibrary with an archive of the machine code of its kernels.

    ``names`` maps the names of kernels to those in the library, if they differ.
    """

    def __init__(
        self, driver: NativeDriver, handle: Any, artifact: bytes | None, names: Mapping[str, str] | None = None
    ) -> None:
        self._driver = driver
        self._handle = handle
        self._names = names
        self._has_code = artifact is not None  # the archive was made by an earlier process
        self._changed = False
        self._archive = self._open_archive(artifact)

    def _open_archive(self, artifact: bytes | None) -> Any:
        """The archive; None if this GPU has no archives."""
        descriptor = self._driver.metal.MTLBinaryArchiveDescriptor.alloc().init()
        if artifact is not None:
            with tempfile.NamedTemporaryFile(dir=scratch_directory(), suffix=".archive", delete=False) as file:
                file.write(artifact)
            descriptor.setUrl_(file_url(file.name))
        archive, error = self._driver.device.newBinaryArchiveWithDescriptor_error_(descriptor, None)
        if archive is None and artifact is not None:
            raise ShaderError(f"a binary archive cannot be used: {error_text(error)}")
        return archive

    @property
    def function_names(self) -> tuple[str, ...]:
        if self._names is not None:
            return tuple(self._names)
        with autorelease_pool():
            return tuple(str(name) for name in self._handle.functionNames())

    def pipeline(self, name: str, constants: Constants) -> NativePipeline:
        with autorelease_pool():
            descriptor = self._driver.metal.MTLComputePipelineDescriptor.alloc().init()
            descriptor.setComputeFunction_(self._function(name, constants))
            descriptor.setLabel_(name)
            if self._archive is not None:
                descriptor.setBinaryArchives_([self._archive])
            state = self._from_archive(descriptor)
            return NativePipeline(name, self._compiled(name, descriptor) if state is None else state)

    def _from_archive(self, descriptor: Any) -> Any:
        if self._archive is None or not self._has_code:
            return None
        state, _ = self._create(descriptor, _FAIL_ON_ARCHIVE_MISS)
        self._driver.archive_hits += state is not None
        return state

    def _compiled(self, name: str, descriptor: Any) -> Any:
        """Compile into the archive, from which the pipeline is then made; without an archive compile the pipeline."""
        self._driver.archive_misses += 1
        if self._archive is not None:
            added, _ = self._archive.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)
            self._changed |= bool(added)
        state, error = self._create(descriptor, 0)
        if state is None:
            raise ShaderError(f"kernel {name!r} does not compile: {error_text(error)}")
        return state

    def _create(self, descriptor: Any, options: int) -> Any:
        return self._driver.device.newComputePipelineStateWithDescriptor_options_reflection_error_(
            descriptor, options, None, None
        )

    def _function(self, name: str, constants: Constants) -> Any:
        known = name if self._names is None else self._names[name]
        values = self._constant_values(known, constants)
        function, error = self._handle.newFunctionWithName_constantValues_error_(known, values, None)
        if function is None:
            raise ShaderError(f"kernel {name!r} cannot be specialised: {error_text(error)}")
        return function

    def _constant_values(self, name: str, constants: Constants) -> Any:
        values = self._driver.metal.MTLFunctionConstantValues.alloc().init()
        known = self._handle.newFunctionWithName_(name).functionConstantsDictionary() if constants else {}
        for constant, value in constants.items():
            if constant not in known:
                continue  # the compiler leaves out what a kernel does not use in the end
            constant_type = int(known[constant].type())
            if constant_type not in _CONSTANT_FORMATS:
                raise ShaderError(f"kernel {name!r} has no function constant {constant!r} that is a number")
            code = _CONSTANT_FORMATS[constant_type]
            number = float(value) if code in "ef" else bool(value) if code == "?" else int(value)
            values.setConstantValue_type_withName_(struct.pack(code, number), constant_type, constant)
        return values

    def artifact(self) -> bytes | None:
        if not self._changed:
            return None
        self._changed = False
        with autorelease_pool(), tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
            path = Path(directory) / "archive"
            written, _ = self._archive.serializeToURL_error_(file_url(path), None)
            return path.read_bytes() if written else None
