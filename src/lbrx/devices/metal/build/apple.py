"""The library of Apple GPUs: Apple's offline compiler, through ``xcrun``."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lbrx.devices.metal.build.variants import Variant, variants
from lbrx.devices.metal.driver.errors import MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.prebuilt import APPLE, Manifest, PrebuiltShader, file_digest
from lbrx.devices.metal.generations import LANGUAGES

LIBRARY = "shaders.metallib"
OLDEST_BFLOAT_MACOS = 14  # on macOS 13 shaders are compiled from source
_XCRUN = ("xcrun", "-sdk", "macosx")
_KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(")
_HOST_NAME = re.compile(r'host_name\(((?:\s*"\w*")+)\s*\)')
_NAMING = re.compile(r"host_name\(([^()]+)\)")


def build_for_apple(
    directory: Path,
    *,
    only: Sequence[Variant] | None = None,
    xcrun: Sequence[str] = _XCRUN,
    progress: Callable[[str], None] | None = None,
) -> Manifest:
    """Compile all variants, or ``only`` some, into one library in a directory; needs Xcode."""
    language = LANGUAGES[OLDEST_BFLOAT_MACOS]
    flags = (
        *(f"-std=metal{language[0]}.{language[1]}", f"-mmacosx-version-min={OLDEST_BFLOAT_MACOS}.0"),
        *("-fno-fast-math", "-O2", "-Wno-c++17-extensions"),
    )
    directory.mkdir(parents=True, exist_ok=True)
    shaders, objects = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for variant in variants() if only is None else only:
            if progress is not None:
                progress(variant.shader + variant.suffix)
            name = variant.shader + variant.suffix
            source, compiled = Path(scratch) / f"{name}.metal", Path(scratch) / f"{name}.air"
            source.write_text(named_apart(variant), encoding="utf-8")
            macros = [f"-D{define}={value}" for define, value in variant.defines]
            command = [*xcrun, "metal", *flags, *macros, str(source)]
            kernels = kernel_names(_run([*command, "-E"]), variant.suffix)
            _run([*command, *_renamed(variant), "-c", "-o", str(compiled)])
            shaders.append(PrebuiltShader(variant.shader, variant.defines, variant.digest, kernels))
            objects.append(str(compiled))
        library = directory / LIBRARY
        _run([*xcrun, "metallib", *objects, "-o", str(library)])
    version = _run([*xcrun, "metal", "--version"]).partition("\n")[0].strip()
    manifest = Manifest(APPLE, version, language, OLDEST_BFLOAT_MACOS, LIBRARY, file_digest(library), tuple(shaders))
    manifest.write(directory)
    return manifest


def named_apart(variant: Variant) -> str:
    """The source with the suffix of the variant behind each ``host_name``: adjacent strings are one string.

    >>> '[[host_name(name "__TILE_half")]]' in named_apart(Variant("matmul", (("TILE", "half"),)))
    True
    """
    if not variant.suffix:
        return variant.source
    return _NAMING.sub(lambda match: f'host_name({match[1]} "{variant.suffix}")', variant.source)


def _renamed(variant: Variant) -> list[str]:
    """Macros that append the suffix to kernels without a ``host_name``."""
    if not variant.suffix:
        return []
    return [f"-D{name}={name}{variant.suffix}" for name in dict.fromkeys(_KERNEL.findall(variant.source))]


def kernel_names(preprocessed: str, suffix: str) -> dict[str, str]:
    """Names of kernels in a preprocessed source, and what they are in the library.

    >>> kernel_names('kernel void k(int x) {} template [[host_name("m_64" "__T")]] [[kernel]] f;', "__T")
    {'k': 'k__T', 'm_64': 'm_64__T'}
    """
    names = {name: name + suffix for name in _KERNEL.findall(preprocessed)}
    for strings in _HOST_NAME.findall(preprocessed):
        full = "".join(re.findall(r'"(\w*)"', strings))
        names[full.removesuffix(suffix)] = full
    return names


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MetalUnavailable(f"{command[0]}: {error.strerror}; Apple's compiler needs macOS with Xcode") from error
    if done.returncode:
        raise ShaderError(f"`{' '.join(command[:4])} ...` failed:\n{done.stderr.strip()}")
    return done.stdout
