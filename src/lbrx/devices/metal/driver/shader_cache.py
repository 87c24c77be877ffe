"""Compiled shaders: in memory for this process, on disk for the next."""

from __future__ import annotations

import atexit
import threading
import weakref
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver import CompileOptions, Constants, Driver, Library, Pipeline
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.driver.prebuilt import PrebuiltShaders
from lbrx.errors import nearest

PREBUILT_DIRECTORY = Path(__file__).parent.parent / "prebuilt"
_PipelineKey = tuple[str, str, tuple[tuple[str, bool | int | float], ...]]


@dataclass(slots=True)
class ShaderStatistics:
    """Libraries by where they came from, and pipelines that were there already.

    ``prebuilt`` libraries were compiled ahead of time. ``loaded`` ones have their machine code from the disk; Metal
    still reads their source. ``compiled`` ones were compiled from source.
    """

    prebuilt: int = 0
    compiled: int = 0
    loaded: int = 0
    hits: int = 0


class ShaderCache:
    """Pipelines by source, options, device, function and function constants.

    A shader comes from the libraries that were compiled ahead of time, else from the disk, else from its source. What
    is on disk is valid for one GPU family, system and driver. An entry that is damaged, or is not what its name says,
    is made anew. Several processes may use one directory. An entry to which kernels are added is written when their
    number reaches a power of two, and when the process ends.

    >>> from lbrx.devices.metal.emulator.driver import EmulatedDriver
    >>> cache = ShaderCache(EmulatedDriver())
    >>> cache.pipeline("kernel void nothing() {}", "nothing").name
    'nothing'
    """

    def __init__(self, driver: Driver, store: ArtifactStore | None = None, prebuilt: Path = PREBUILT_DIRECTORY) -> None:
        self.statistics = ShaderStatistics()
        self.prebuilt = PrebuiltShaders(driver, prebuilt)
        self._driver = driver
        self._store = store or ArtifactStore()
        self._libraries: dict[str, Library] = {}
        self._failures: dict[str, str] = {}
        self._pipelines: dict[_PipelineKey, Pipeline] = {}
        self._added: dict[str, int] = {}  # kernels by library since the process began
        self._lock = threading.RLock()
        atexit.register(_flush, weakref.ref(self))

    def key(self, source: str, options: CompileOptions) -> str:
        """What an entry on disk is called."""
        defines = "".join(f"{name}={value}\n" for name, value in options.defines)
        return f"{self._driver.info.identity}\n{defines}fast_math={options.fast_math}\n{source}"

    def pipeline(
        self, source: str, name: str, constants: Constants | None = None, options: CompileOptions | None = None
    ) -> Pipeline:
        """The kernel ``name`` of a shader; a ShaderError tells what is wrong, with the shader's line."""
        options = options or CompileOptions()
        constants = constants or {}
        key = self.key(source, options)
        pipeline_key = (key, name, tuple(sorted(constants.items())))
        with self._lock:
            pipeline = self._pipelines.get(pipeline_key)
            if pipeline is None:
                pipeline = self._pipelines[pipeline_key] = self._pipeline(key, source, name, constants, options)
            else:
                self.statistics.hits += 1
            return pipeline

    def flush(self) -> None:
        """Write what is new since the last time."""
        with self._lock:
            for key, library in self._libraries.items():
                self._write(key, library)

    def _pipeline(self, key: str, source: str, name: str, constants: Constants, options: CompileOptions) -> Pipeline:
        library = self._libraries.get(key)
        if library is None and key in self._failures:
            raise ShaderError(self._failures[key])
        artifact = self._store.read(key) if library is None else None
        if library is None:
            library = self.prebuilt.library(source, options, artifact)
            self.statistics.prebuilt += library is not None
        if library is None and artifact is not None:
            try:
                library = self._driver.compile(source, options, artifact)
                pipeline = _function(library, name, constants)
            except ShaderError:
                library = None  # of no use, or without the function: the source decides
            else:
                self.statistics.loaded += 1
                return self._keep(key, library, pipeline)
        if library is None:
            try:
                library = self._driver.compile(source, options)
            except ShaderError as error:
                self._failures[key] = str(error)  # it fails at once the next time
                raise
            self.statistics.compiled += 1
        self._libraries[key] = library
        return self._keep(key, library, _function(library, name, constants))

    def _keep(self, key: str, library: Library, pipeline: Pipeline) -> Pipeline:
        self._libraries[key] = library
        added = self._added[key] = self._added.get(key, 0) + 1
        if not added & (added - 1):  # a power of two: writing all of them costs no more than twice the last time
            self._write(key, library)
        return pipeline

    def _write(self, key: str, library: Library) -> None:
        artifact = library.artifact()
        if artifact is not None:
            self._store.write(key, artifact)


def _flush(reference: weakref.ref[ShaderCache]) -> None:
    cache = reference()
    if cache is not None:
        cache.flush()


def _function(library: Library, name: str, constants: Constants) -> Pipeline:
    if name not in library.function_names:
        raise ShaderError(f"the shader has no kernel {name!r}{nearest(name, library.function_names)}")
    return library.pipeline(name, constants)
