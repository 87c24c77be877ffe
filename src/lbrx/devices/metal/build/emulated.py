"""The library of the emulator: the same shaders and manifest, compiled for the CPU of this machine."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lbrx.devices.metal.build.variants import Variant, variants
from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.prebuilt import EMULATOR, Manifest, PrebuiltShader, file_digest
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.errors import UsageError

LIBRARY = "shaders.emulated"


def build_for_emulator(
    directory: Path,
    driver: EmulatedDriver | None = None,
    *,
    only: Sequence[Variant] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Manifest:
    """Compile all variants, or ``only`` some, into a directory."""
    used = driver or EmulatedDriver()
    directory.mkdir(parents=True, exist_ok=True)
    shaders = []
    with zipfile.ZipFile(directory / LIBRARY, "w", zipfile.ZIP_DEFLATED) as library:
        for variant in variants() if only is None else only:
            if progress is not None:
                progress(variant.shader + variant.suffix)
            compiled = used.compile(variant.source, CompileOptions(variant.defines))
            image = compiled.artifact()
            if image is None:
                raise UsageError(f"{variant.shader}: the emulator compiled no image")
            library.writestr(variant.digest, image)
            names = {name: name for name in compiled.function_names}
            shaders.append(PrebuiltShader(variant.shader, variant.defines, variant.digest, names))
    info = used.info
    digest = file_digest(directory / LIBRARY)
    manifest = Manifest(EMULATOR, info.driver_version, info.language, 0, LIBRARY, digest, tuple(shaders))
    manifest.write(directory)
    return manifest
