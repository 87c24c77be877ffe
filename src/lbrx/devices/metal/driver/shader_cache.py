"""Compiled shaders: in memory for this process, on disk for the next."""

from __future__ import annotations

import threading

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver import CompileOptions, Constants, Driver, Library, Pipeline
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.errors import nearest

_PipelineKey = tuple[str, str, tuple[tuple[str, bool | int | float], ...]]


@dataclass(slots=True)
class ShaderStatistics:
    """Libraries that were compiled, that came from disk, and pipelines that were there already."""

    compiled: int = 0
    loaded: int = 0
    hits: int = 0


class ShaderCache:
    """Pipelines by source, options, device, function and function constants.

    What is on disk is valid for one GPU family, system and driver. An entry that is damaged, or is not what its name
    says, is made anew. Several processes may use one directory.

    >>> from lbrx.devices.metal.emulator.driver import EmulatedDriver
    >>> cache = ShaderCache(EmulatedDriver())
    >>> cache.pipeline("kernel void nothing() {}", "nothing").name
    'nothing'
    """

    def __init__(self, driver: Driver, store: ArtifactStore | None = None) -> None:
        self.statistics = ShaderStatistics()
        self._driver = driver
        self._store = store or ArtifactStore()
        self._libraries: dict[str, Library] = {}
        self._pipelines: dict[_PipelineKey, Pipeline] = {}
        self._lock = threading.RLock()

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

    def _pipeline(self, key: str, source: str, name: str, constants: Constants, options: CompileOptions) -> Pipeline:
        library = self._libraries.get(key)
        artifact = self._store.read(key) if library is None else None
        if artifact is not None:
            try:
                library = self._driver.compile(source, options, artifact)
                pipeline = _function(library, name, constants)
            except ShaderError:
                library = None  # of no use, or without the function: the source decides
            else:
                self.statistics.loaded += 1
                return self._keep(key, library, pipeline)
        if library is None:
            library = self._driver.compile(source, options)
            self.statistics.compiled += 1
            self._libraries[key] = library
        return self._keep(key, library, _function(library, name, constants))

    def _keep(self, key: str, library: Library, pipeline: Pipeline) -> Pipeline:
        self._libraries[key] = library
        artifact = library.artifact()
        if artifact is not None:
            self._store.write(key, artifact)
        return pipeline


def _function(library: Library, name: str, constants: Constants) -> Pipeline:
    if name not in library.function_names:
        raise ShaderError(f"the shader has no kernel {name!r}{nearest(name, library.function_names)}")
    return library.pipeline(name, constants)
