"""Shaders that were compiled ahead of time: a library, and a manifest that says what is in it and where it runs.

An entry is found by the digest of its source and macros, so a library never stands in for a shader that has changed.
``python -m lbrx.devices.metal.build`` makes both files; a wheel that was built on a Mac ships them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver import CompileOptions, DeviceInfo, Driver, Library
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.errors import FormatError

MANIFEST = "manifest.json"
APPLE, EMULATOR = "apple", "emulator"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PrebuiltShader:
    """A shader of the library. ``kernels`` maps the names of its kernels to those in the library."""

    shader: str
    defines: tuple[tuple[str, str], ...]
    digest: str
    kernels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a library was compiled from, and the systems that it is for.

    ``target`` is ``apple`` or ``emulator``; ``macos`` the oldest version that loads it.
    """

    target: str
    compiler: str
    language: tuple[int, int]
    macos: int
    library: str
    library_digest: str
    shaders: tuple[PrebuiltShader, ...]

    def why_not(self, info: DeviceInfo) -> str | None:
        """Why a device cannot use the library, or None if it can."""
        if self.target != (EMULATOR if info.emulated else APPLE):
            return f"the library is for the {self.target} driver"
        if info.emulated:
            fits = (self.compiler, self.language) == (info.driver_version, info.language)
            return None if fits else "another version of the emulator made the library"
        system = int(info.system_version.partition(".")[0] or 0)
        return None if system >= self.macos else f"the library needs macOS {self.macos}; this is macOS {system}"

    def write(self, directory: Path) -> None:
        """Write ``manifest.json``."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True)
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read ``manifest.json``; a FormatError if it is not one."""
        path = directory / MANIFEST
        try:
            fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if fields.pop("format") != _FORMAT:
                raise ValueError("an unknown format")
            shaders = tuple(
                PrebuiltShader(**{**each, "defines": tuple((name, value) for name, value in each["defines"])})
                for each in fields.pop("shaders")
            )
            major, minor = fields.pop("language")
            return cls(shaders=shaders, language=(major, minor), **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{path}: is not a manifest of compiled shaders: {error}") from error


def shader_digest(source: str, options: CompileOptions) -> str:
    """What an entry is found by: source, macros and math mode.

    >>> shader_digest("kernel void k() {}", CompileOptions()) == shader_digest("", CompileOptions())
    False
    """
    defines = "".join(f"#define {name} {value}\n" for name, value in options.defines)
    return hashlib.sha256(f"fast_math={options.fast_math}\n{defines}{source}".encode()).hexdigest()


class PrebuiltShaders:
    """The shaders of a directory that a driver can load; ``reason`` says why there are none."""

    def __init__(self, driver: Driver, directory: Path) -> None:
        self._driver = driver
        self._path = directory
        self._shaders: dict[str, PrebuiltShader] = {}
        self.description = ""
        self.reason = self._open(directory)

    def _open(self, directory: Path) -> str | None:
        if not (directory / MANIFEST).exists():
            return "this installation has no compiled shaders"
        try:
            manifest = Manifest.read(directory)
        except FormatError as error:
            return str(error)
        reason = manifest.why_not(self._driver.info)
        if reason is not None:
            return reason
        self._path = directory / manifest.library
        try:
            is_whole = file_digest(self._path) == manifest.library_digest
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        if not is_whole:
            return f"{self._path}: is not the library of the manifest"
        self._shaders = {each.digest: each for each in manifest.shaders}
        major, minor = manifest.language
        self.description = f"{manifest.library}, language {major}.{minor}, {manifest.compiler}"
        return None

    def library(self, source: str, options: CompileOptions, artifact: bytes | None) -> Library | None:
        """The compiled form of a shader, or None if there is none that can be loaded."""
        shader = self._shaders.get(shader_digest(source, options)) if self._shaders else None
        if shader is None:
            return None
        for machine_code in (artifact, None) if artifact is not None else (None,):
            try:
                return self._driver.load(self._path, shader.digest, shader.kernels, machine_code)
            except ShaderError as error:
                reason = str(error)
        self.reason, self._shaders = reason, {}
        return None

    def __len__(self) -> int:
        return len(self._shaders)


def file_digest(path: Path) -> str:
    """The SHA-256 digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
