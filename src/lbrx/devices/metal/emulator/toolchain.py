"""The compiler of the emulator: clang from the ``ziglang`` package, or one on this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver.errors import MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.scratch import scratch_directory

OLDEST_CLANG = 19  # 16 and older have no bfloat arithmetic
OLDEST_APPLE_CLANG = 17
_CLANG_NAMES = ("clang", *(f"clang-{version}" for version in range(24, OLDEST_CLANG - 1, -1)))


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Commands that compile shaders, link them, and compile the runner."""

    version: str
    compiler: tuple[str, ...]
    linker: tuple[str, ...]
    host_compilers: tuple[tuple[str, ...], ...]  # the first that works is used


@cache
def find_toolchain() -> Toolchain:
    """The compiler to use; a MetalUnavailable that says what to install if there is none."""
    toolchain = _zig_toolchain() or _clang_toolchain()
    if toolchain is None:
        raise MetalUnavailable(
            "the Metal emulator needs clang: install it with `pip install ziglang`, or put clang "
            f"{OLDEST_CLANG} or newer on the PATH"
        )
    return toolchain


def _zig_toolchain() -> Toolchain | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    zig = str(Path(spec.origin).parent / "zig")
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    version = f"ziglang {importlib.metadata.version('ziglang')} {sys.platform} {machine}"
    if sys.platform == "darwin":
        target = f"{'arm64' if machine == 'aarch64' else machine}-apple-macosx11.0"
        linker = (zig, "cc", "-shared", "-Wl,-undefined,dynamic_lookup")
    else:
        target = f"{machine}-unknown-linux-gnu"
        linker = (zig, "ld.lld", "-shared")
    return Toolchain(version, (zig, "clang", "-target", target), linker, (*_system_compiler(), (zig, "cc")))


def _system_compiler() -> tuple[tuple[str, ...], ...]:
    """The machine's own C compiler: Zig first builds a C library for half a minute."""
    path = shutil.which("cc") if sys.platform == "linux" else None
    return () if path is None else ((path,),)


def _clang_toolchain() -> Toolchain | None:
    for name in _CLANG_NAMES:
        path = shutil.which(name)
        if path is None:
            continue
        banner = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition(
            "\n"
        )[0]
        match = re.search(r"(Apple )?clang version (\d+)", banner)
        if match and int(match.group(2)) >= (OLDEST_APPLE_CLANG if match.group(1) else OLDEST_CLANG):
            unresolved = ("-Wl,-undefined,dynamic_lookup",) if sys.platform == "darwin" else ("-nostdlib",)
            version = f"{banner} {sys.platform} {platform.machine()}"
            return Toolchain(version, (path,), (path, "-shared", *unresolved), ((path,),))
    return None


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command of the toolchain, with its caches inside ours."""
    directory = _zig_cache()
    environment = os.environ | {
        "ZIG_GLOBAL_CACHE_DIR": str(directory / "global"),
        "ZIG_LOCAL_CACHE_DIR": str(directory / "local"),
    }
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    except OSError as error:
        raise MetalUnavailable(
            f"{command[0]}: the compiler of the emulator does not start: {error.strerror}"
        ) from error


@cache
def _zig_cache() -> Path:
    """Zig needs a cache that it can write: ours, or one for this process."""
    directory = system.cache_directory("zig")
    with contextlib.suppress(OSError):
        system.make_private(directory)
    return directory if os.access(directory, os.W_OK) else scratch_directory() / "zig"


def compile_for_host(arguments: list[str], what: str) -> None:
    """Compile C for this machine; a ShaderError with the last compiler's messages if none can."""
    *others, last = find_toolchain().host_compilers
    for compiler in others:
        with contextlib.suppress(ShaderError):
            run([*compiler, *arguments], what=what)
            return
    run([*last, *arguments], what=what)


def run(command: list[str], text: str = "", what: str = "") -> str:
    """The output of a command; its own messages as a ShaderError if it fails."""
    process = start(command)
    output, messages = process.communicate(text)
    if process.returncode:
        raise ShaderError(f"{what}:\n{messages.strip()}" if what else messages.strip())
    return output
