"""The driver that runs Metal shaders on the CPU, for machines without an Apple GPU."""

from __future__ import annotations

import platform
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.base.system import available_bytes, format_bytes
from lbrx.devices.metal.driver import CompileOptions, Constants, DeviceInfo, Dispatch, GpuFamily
from lbrx.devices.metal.driver.errors import MetalError, ShaderError
from lbrx.devices.metal.emulator.build import build, emulator_version
from lbrx.devices.metal.emulator.image import Image
from lbrx.devices.metal.emulator.launch import EmulatedPipeline, EmulatorSettings, launch
from lbrx.devices.metal.emulator.memory import EmulatedBuffer, WrappedBuffer
from lbrx.devices.metal.emulator.runtime import LoadedLibrary
from lbrx.devices.metal.generations import GENERATIONS, Generation, Version
from lbrx.errors import MemoryBudgetError, UsageError, nearest

_LANGUAGE: Version = (3, 2)  # of macOS 15


class EmulatedLibrary:
    """A compiled shader, loaded once for every set of function constants."""

    def __init__(self, image: Image, *, is_new: bool) -> None:
        self.image = image
        self._is_new = is_new
        self._loaded: dict[tuple[tuple[int, float], ...], LoadedLibrary] = {}

    @property
    def function_names(self) -> tuple[str, ...]:
        return self.image.names

    def pipeline(self, name: str, constants: Constants) -> EmulatedPipeline:
        if name not in self.image.kernels:
            raise ShaderError(f"the shader has no kernel {name!r}{nearest(name, self.image.names)}")
        for constant in constants:
            if constant not in self.image.constants:
                hint = nearest(constant, self.image.constants)
                raise ShaderError(f"kernel {name!r} has no function constant {constant!r}{hint}")
        values = {self.image.constants[constant].index: value for constant, value in constants.items()}
        key = tuple(sorted((index, float(value)) for index, value in values.items()))
        if key not in self._loaded:
            self._loaded[key] = LoadedLibrary(self.image.code, values)
        return EmulatedPipeline(self.image, self._loaded[key], name)

    def artifact(self) -> bytes | None:
        is_new, self._is_new = self._is_new, False
        return self.image.to_bytes() if is_new else None


class EmulatedSubmission:
    """Dispatches that a thread works off; an error is raised by ``wait``."""

    def __init__(self, future: Future[tuple[float, float]]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        self._future.result()

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        return self._future.result()


class EmulatedDriver:
    """An Apple GPU on the CPU; see EmulatorSettings for how it runs and what it finds.

    It has the limits of a generation, and compiles a version of the shading language.

    >>> driver = EmulatedDriver()
    >>> driver.info.emulated, driver.info.family.name
    (True, 'APPLE7')
    """

    def __init__(
        self,
        settings: EmulatorSettings | None = None,
        *,
        generation: str = "M1",
        language: Version = _LANGUAGE,
        info: DeviceInfo | None = None,
    ) -> None:
        self.settings = settings or EmulatorSettings()
        self._info = info or _device_info(GENERATIONS[generation], language, self.settings)
        self._worker = ThreadPoolExecutor(1, "lbrx-metal")

    @property
    def info(self) -> DeviceInfo:
        """The properties of the emulated GPU."""
        return self._info

    def facts(self) -> dict[str, Any]:
        return {}

    def with_settings(self, settings: EmulatorSettings) -> EmulatedDriver:
        """The same device, run in another way."""
        return EmulatedDriver(settings, info=replace(self._info, driver_version=_driver_version(settings)))

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        if nbytes < 0:
            raise UsageError(f"a buffer of {nbytes} bytes was asked for; expected zero or more")
        self._check_size(nbytes)
        return EmulatedBuffer(nbytes, self.settings.placement)

    def wrap(self, address: int, nbytes: int, keep_alive: object, *, resident: bool = False) -> WrappedBuffer:  # noqa: ARG002
        self._check_size(nbytes)
        return WrappedBuffer(address, nbytes, keep_alive)

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._info.max_buffer_bytes:
            raise MemoryBudgetError(
                f"a buffer of {format_bytes(nbytes)} was asked for, but the largest on {self._info.name} is "
                f"{format_bytes(self._info.max_buffer_bytes)}"
            )

    def compile(
        self,
        source: str,
        options: CompileOptions,
        artifact: bytes | None = None,
        *,
        include_directories: Sequence[Path] = (),
        only: Sequence[str] | None = None,
    ) -> EmulatedLibrary:
        """Compile a shader; ``include_directories`` and ``only`` are for shaders of others, see ``build``."""
        if artifact is not None:
            return EmulatedLibrary(Image.from_bytes(artifact), is_new=False)
        instrumented = self.settings.find_races
        image = build(
            source,
            options,
            language=self._info.language,
            instrumented=instrumented,
            include_directories=include_directories,
            only=only,
        )
        return EmulatedLibrary(image, is_new=True)

    def load(
        self,
        path: Path,
        digest: str,
        kernels: Mapping[str, str],  # noqa: ARG002
        artifact: bytes | None = None,  # noqa: ARG002
    ) -> EmulatedLibrary:
        try:
            with zipfile.ZipFile(path) as library:
                return EmulatedLibrary(Image.from_bytes(library.read(digest)), is_new=False)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise ShaderError(f"{path}: cannot be loaded: {error}") from error

    def submit(self, dispatches: Sequence[Dispatch], label: str) -> EmulatedSubmission:
        return EmulatedSubmission(self._worker.submit(self._run, tuple(dispatches), label))

    def _run(self, dispatches: tuple[Dispatch, ...], label: str) -> tuple[float, float]:
        start = time.perf_counter()
        for dispatch in dispatches:
            try:
                launch(dispatch, self.settings, self._info.threadgroup_memory_bytes)
            except MetalError as error:
                error.add_note(f"in the batch '{label}'")
                raise
        return start, time.perf_counter()


def _driver_version(settings: EmulatorSettings) -> str:
    return f"emulator {emulator_version()}{' instrumented' if settings.find_races else ''}"


def _device_info(generation: Generation, language: Version, settings: EmulatorSettings) -> DeviceInfo:
    return DeviceInfo(
        name=f"emulated {generation.name}",
        family=GpuFamily(generation.family),
        unified_memory=True,
        max_buffer_bytes=generation.max_buffer_bytes,
        max_threads_per_threadgroup=generation.max_threads_per_threadgroup,
        threadgroup_memory_bytes=generation.threadgroup_memory_bytes,
        working_set_bytes=available_bytes() * 3 // 4,
        system_version=platform.platform(),
        driver_version=_driver_version(settings),
        emulated=True,
        language=language,
        cores=generation.cores,
    )
