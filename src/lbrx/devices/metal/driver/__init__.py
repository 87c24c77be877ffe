"""What a Metal driver is: the few things that the backend asks of a device.

``native`` talks to an Apple GPU; ``lbrx.devices.metal.emulator`` runs the same shaders on the CPU. Everything that can
be done without a device (checking, pooling, caching, batching) is done above this protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.generations import Version

Bytes: TypeAlias = NDArray[np.uint8]
Size: TypeAlias = tuple[int, int, int]
Constants: TypeAlias = Mapping[str, bool | int | float]  # function constants by name


class GpuFamily(IntEnum):
    """Generations of Apple's GPUs."""

    APPLE7 = 7  # M1
    APPLE8 = 8  # M2
    APPLE9 = 9  # M3, M4
    APPLE10 = 10  # M5


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device and its limits. Compiled shaders are valid for one ``identity`` only."""

    name: str
    family: GpuFamily
    unified_memory: bool
    max_buffer_bytes: int
    max_threads_per_threadgroup: int
    threadgroup_memory_bytes: int
    working_set_bytes: int
    system_version: str
    driver_version: str
    emulated: bool
    language: Version  # of the shading language that shaders are compiled for
    cores: int  # of the GPU; 0 if unknown

    @property
    def identity(self) -> str:
        """Family, system, language and driver, on which compiled shaders depend."""
        language = ".".join(map(str, self.language))
        return f"{self.name}|{self.family.name}|{self.system_version}|{language}|{self.driver_version}"

    @property
    def tuning_key(self) -> str:
        """Name, cores and language, on which the fastest variants of kernels depend."""
        major, minor = self.language
        return f"{self.name}|{self.cores} cores|{major}.{minor}"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a shader is compiled. Results are reproducible without ``fast_math``, so it is off."""

    defines: tuple[tuple[str, str], ...] = ()
    fast_math: bool = False


class Submission(Protocol):
    """Work that was handed to the device."""

    @property
    def done(self) -> bool:
        """Whether the device is finished with it, well or not."""

    def wait(self) -> None:
        """Return when the work is done; raise KernelFault if it went wrong."""

    @property
    def gpu_seconds(self) -> tuple[float, float]:
        """When the device began and when it ended, on a clock of its own. Only after ``wait``."""


class Buffer(Protocol):
    """Memory that both CPU and GPU see. ``last_use`` is the work that touched it last; the batch keeps it."""

    last_use: Submission | None

    @property
    def nbytes(self) -> int: ...

    @property
    def capacity_bytes(self) -> int: ...

    @property
    def read_only(self) -> bool: ...

    def view(self) -> Bytes:
        """The bytes as the CPU sees them. Do not write while the GPU works on them."""

    def fit(self, nbytes: int) -> None:
        """Use the buffer anew for ``nbytes`` (at most the capacity); its contents are lost."""

    def release(self) -> None:
        """Give the memory back; views of it must not be used any more."""


class Pipeline(Protocol):
    """A kernel that can be dispatched."""

    @property
    def name(self) -> str: ...

    @property
    def max_threads(self) -> int:
        """The largest threadgroup that this kernel can have."""

    @property
    def simd_width(self) -> int: ...


class Library(Protocol):
    """A compiled shader."""

    @property
    def function_names(self) -> tuple[str, ...]: ...

    def pipeline(self, name: str, constants: Constants) -> Pipeline:
        """The kernel of that name, specialised by function constants; a ShaderError if there is none."""

    def artifact(self) -> bytes | None:
        """What makes the next compilation of the same shader cheap; None if nothing is new since the last call."""


@dataclass(frozen=True, slots=True)
class BufferBinding:
    """A buffer from an offset on. ``nbytes`` says how much of it the kernel may touch: the emulator checks it."""

    buffer: Buffer
    offset: int = 0
    nbytes: int | None = None


Argument: TypeAlias = BufferBinding | bytes


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel over one grid: a size in threadgroups, or in threads where the last groups may be cut off."""

    pipeline: Pipeline
    arguments: Mapping[int, Argument]
    grid: Size
    threads_per_threadgroup: Size
    grid_unit: Literal["threadgroups", "threads"] = "threadgroups"
    threadgroup_bytes: Mapping[int, int] = field(default_factory=dict)


class Driver(Protocol):
    """A device. Submissions run one after the other, in order; so do the dispatches in them."""

    @property
    def info(self) -> DeviceInfo: ...

    def facts(self) -> dict[str, Any]:
        """What else there is to report of the device, by name: allocated bytes, hits of caches."""

    def allocate(self, nbytes: int) -> Buffer:
        """A shared buffer with unspecified contents; a MemoryBudgetError if there is no memory for it."""

    def wrap(self, address: int, nbytes: int, keep_alive: object, *, resident: bool = False) -> Buffer | None:
        """A read-only buffer over whole pages that are mapped already, without a copy; None if the device takes none.

        ``keep_alive`` holds the pages until the device is done with them. ``resident``: kernels will read them often.
        """

    def compile(self, source: str, options: CompileOptions, artifact: bytes | None = None) -> Library:
        """Compile a shader, or load the artifact of the same source, options and device.

        A ShaderError tells the shader's lines, or that the artifact is of no use.
        """

    def load(self, path: Path, digest: str, kernels: Mapping[str, str], artifact: bytes | None = None) -> Library:
        """A shader of a library that was compiled ahead of time, see ``prebuilt``.

        ``kernels`` maps the names of its kernels to those in the library. A ShaderError says why it cannot be loaded.
        """

    def submit(self, dispatches: Sequence[Dispatch], label: str) -> Submission:
        """Hand dispatches to the device and return at once."""
