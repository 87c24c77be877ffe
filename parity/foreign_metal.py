"""Shaders of others, from the packages that carry them: MLX's headers and llama.cpp's kernels."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lbrx.base import system
from lbrx.devices.metal.driver import BufferBinding, CompileOptions
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.emulator.driver import EmulatedDriver, EmulatedLibrary
from lbrx.devices.metal.emulator.launch import EmulatorSettings

MLX = ("mlx-metal==0.32.4", ("--platform", "macosx_14_0_arm64", "--only-binary=:all:"))
LLAMA = ("llama-cpp-python==0.3.36", ("--no-binary", "llama-cpp-python"))
# Kernels of others return before barriers; Apple's GPUs allow it, the specification does not.
DRIVER = EmulatedDriver(EmulatorSettings(strict_barriers=False))
_C_TYPES = {
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "int16_t": ctypes.c_int16,
    "float": ctypes.c_float,
    "bool": ctypes.c_bool,
}


def package(requirement: str, options: Sequence[str]) -> Path:
    """The archive of a package, downloaded once."""
    directory = system.cache_directory() / "parity" / requirement
    if not directory.is_dir() or not any(directory.iterdir()):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            *options,
            "-d",
            str(directory),
            requirement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")
    return next(iter(directory.iterdir()))


@cache
def mlx_include() -> Path:
    """The directory with MLX's headers."""
    archive = package(*MLX)
    target = archive.parent.parent / "mlx-headers"
    with zipfile.ZipFile(archive) as file:
        file.extractall(target, [name for name in file.namelist() if "/backend/metal/kernels/" in name])
    return target / "mlx" / "include"


@cache
def llama_kernels() -> Path:
    """The directory with llama.cpp's Metal backend."""
    archive = package(*LLAMA)
    target = archive.parent.parent / "llama-kernels"
    with tarfile.open(archive) as file:
        wanted = [
            each for each in file.getmembers() if "/ggml-metal/" in each.name or each.name.endswith("ggml-common.h")
        ]
        file.extractall(target, wanted, filter="data")
    return next(target.glob("*/vendor/llama.cpp/ggml/src"))


@cache
def mlx(source: str) -> EmulatedLibrary:
    """A library of a few instantiations over MLX's headers."""
    return DRIVER.compile(source, CompileOptions(), include_directories=[mlx_include()])


@cache
def llama(file: str, only: tuple[str, ...]) -> EmulatedLibrary:
    """A file of llama.cpp with the kernels that are named."""
    root = llama_kernels()
    options = CompileOptions(defines=(("GGML_METAL_HAS_BF16", "1"),))
    include = [root / "ggml-metal" / "kernels", root / "ggml-metal", root]
    source = (root / "ggml-metal" / "kernels" / file).read_text()
    return DRIVER.compile(source, options, include_directories=include, only=only)


def llama_arguments(name: str, **values: Any) -> bytes:
    """A struct of ggml-metal-impl.h, laid out as its text says; what is not given is zero."""
    text = (llama_kernels() / "ggml-metal" / "ggml-metal-impl.h").read_text()
    found = re.search(r"typedef struct\s*\{([^}]*)\}\s*ggml_metal_kargs_" + name + ";", text)
    assert found is not None, f"there is no struct ggml_metal_kargs_{name}"
    fields: list[tuple[str, Any]] = []
    for kind, field, count in re.findall(r"^\s*(\w+)\s+(\w+)(?:\[(\d+)\])?;", found.group(1), re.MULTILINE):
        fields.append((field, _C_TYPES[kind] * int(count) if count else _C_TYPES[kind]))
    unknown = set(values) - {field for field, _ in fields}
    assert not unknown, f"ggml_metal_kargs_{name} has no {unknown}"
    structure = type(name, (ctypes.Structure,), {"_fields_": fields})
    given = {
        field: kind(*values[field]) if isinstance(values[field], tuple) else values[field]
        for field, kind in fields
        if field in values
    }
    return bytes(structure(**given))


def run(
    library: EmulatedLibrary,
    name: str,
    arguments: Mapping[int, NDArray[Any] | bytes],
    grid: tuple[int, ...],
    threadgroup: tuple[int, ...],
    *,
    constants: Mapping[str, bool | int | float] | None = None,
    threadgroup_bytes: Mapping[int, int] | None = None,
) -> None:
    """Run a kernel in two orders of threads, which must agree, and write the results into the arrays."""
    pipeline = library.pipeline(name, constants or {})
    results: list[dict[int, NDArray[np.uint8]]] = []
    for order in ("forward", "reverse"):
        driver = DRIVER.with_settings(replace(DRIVER.settings, order=order))
        arrays = {id(each): each for each in arguments.values() if isinstance(each, np.ndarray)}
        shared = {key: driver.allocate(array.nbytes) for key, array in arrays.items()}
        for key, array in arrays.items():
            shared[key].view()[:] = array.reshape(-1).view(np.uint8)
        buffers = {index: shared[id(each)] for index, each in arguments.items() if id(each) in shared}
        bound = {index: value for index, value in arguments.items() if isinstance(value, bytes)}
        batch = CommandBatch(driver, name)
        batch.dispatch(
            pipeline,
            bound | {index: BufferBinding(buffer) for index, buffer in buffers.items()},
            grid,
            threadgroup,
            threadgroup_bytes=threadgroup_bytes,
        )
        batch.wait()
        results.append({index: buffer.view().copy() for index, buffer in buffers.items()})
    for index, array in arguments.items():
        if isinstance(array, np.ndarray):
            forward, backward = (each[index] for each in results)
            np.testing.assert_array_equal(forward, backward, err_msg=f"buffer {index} depends on the order of threads")
            array.reshape(-1).view(np.uint8)[:] = forward


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def nan(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.full(shape, np.nan, dtype)


def close(found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=tolerance * max(scale, 1e-9))


def softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    exponentials = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float, causal: bool) -> NDArray[np.float64]:
    """Heads of queries share heads of keys; causal masks align the last query with the last key."""
    repeat = q.shape[0] // k.shape[0]
    keys, values = (np.repeat(each.astype(np.float64), repeat, axis=0) for each in (k, v))
    scores = scale * q.astype(np.float64) @ keys.swapaxes(1, 2)
    if causal:
        lengths = scores.shape[1:]
        scores = np.where(np.tri(*lengths, lengths[1] - lengths[0], dtype=bool), scores, -np.inf)
    return softmax(scores) @ values
