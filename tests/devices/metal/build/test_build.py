"""Shaders compiled ahead of time: one manifest for Apple and for the emulator, and the way back to source."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lbrx.devices.metal.build import Variant, build_for_apple, build_for_emulator, variants
from lbrx.devices.metal.build.__main__ import main
from lbrx.devices.metal.build.apple import kernel_names
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.errors import MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.driver.prebuilt import MANIFEST, Manifest, PrebuiltShaders, shader_digest
from lbrx.devices.metal.driver.shader_cache import ShaderCache
from lbrx.devices.metal.ops import launching
from lbrx.devices.metal.ops.arrays import download, upload
from lbrx.devices.metal.ops.rows import softmax
from lbrx.devices.metal.ops.sources import SHADERS, shader_source
from lbrx.errors import FormatError
from lbrx.jobs.doctor.self_test import registered_self_tests
from support import fake_xcrun
from support.fake_objc import FakeMac, install
from support.metal_shaders import driver, needs_clang

pytestmark = needs_clang
XCRUN = (sys.executable, fake_xcrun.__file__)
ROWS = Variant("rows", ())
HALF = Variant("matmul", (("TILE", "half"),))
FLOAT = Variant("matmul", (("TILE", "float"),))
HEADS = Variant("attention_vector", (("HEAD_SIZE", "64"), ("VALUE_SIZE", "64")))


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the emulator with one shader."""
    directory = tmp_path_factory.mktemp("emulated")
    build_for_emulator(directory, driver(), only=[ROWS])
    return directory


def cache_with(directory: Path, tmp_path: Path) -> ShaderCache:
    return ShaderCache(driver(), ArtifactStore(tmp_path / "cache"), directory)


def test_every_shader_is_in_the_list_once() -> None:
    every = variants()
    assert {variant.shader for variant in every} == {path.stem for path in SHADERS.glob("*.metal")}
    assert len({variant.digest for variant in every}) == len(every)
    assert len({variant.shader + variant.suffix for variant in every}) == len(every)
    kernels = [name for path in SHADERS.glob("*.metal") for name in kernel_names(path.read_text(), "")]
    assert len(kernels) == len(set(kernels)) >= 10  # with the suffixes, no two kernels of the library share a name


LAUNCHES = (
    *("kernels: matmul f32 64x64", "kernels: matmul f16 64x64", "kernels: matmul bf16 64x64"),
    *("kernels: attention of many queries", "kernels: attention of many queries, f16"),
    *("kernels: attention of few queries", "kernels: matrix-vector q4_k", "kernels: softmax and norms"),
    *("kernels: rope", "kernels: activations", "kernels: embedding"),
)


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_models_use_is_in_the_list(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new macro of a shader belongs into ``variants.MACROS``."""
    used: set[str] = set()

    class Found(Exception):
        pass

    def record(_context: Any, shader: str, _kernel: str, _constants: Any, defines: tuple[tuple[str, str], ...]) -> None:
        used.add(shader_digest(shader_source(shader), CompileOptions(defines)))
        raise Found

    monkeypatch.setattr(launching, "_pipeline", record)
    with pytest.raises(Found):
        registered_self_tests()[name](MetalContext(driver()))
    assert used <= {variant.digest for variant in variants()}


# -- the emulator -----------------------------------------------------------------------------------------------------


def test_a_prebuilt_shader_is_not_compiled(emulated: Path, tmp_path: Path) -> None:
    context = MetalContext(driver())
    context.shaders = cache_with(emulated, tmp_path)
    x = np.random.default_rng(0).standard_normal((3, 50), np.float32)
    got = download(context, softmax(context, upload(context, x)))
    exact = np.exp(x - x.max(-1, keepdims=True))
    assert np.allclose(got, exact / exact.sum(-1, keepdims=True), atol=1e-6)
    statistics = context.shaders.statistics
    assert (statistics.prebuilt, statistics.compiled, statistics.loaded) == (1, 0, 0)
    assert context.shaders.prebuilt.reason is None
    assert not list(tmp_path.iterdir())  # nothing to write


def test_a_changed_shader_is_compiled_from_source(emulated: Path, tmp_path: Path) -> None:
    cache = cache_with(emulated, tmp_path)
    cache.pipeline(ROWS.source + "// changed\n", "softmax", {"x_type": 0, "out_type": 0})
    assert (cache.statistics.prebuilt, cache.statistics.compiled) == (0, 1)


def damaged(directory: Path, tmp_path: Path, change: str) -> Path:
    """A copy of a build with something wrong."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in directory.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    manifest = Manifest.read(copy)
    if change == "library":
        (copy / manifest.library).write_bytes(b"damaged")
    elif change == "no library":
        (copy / manifest.library).unlink()
    elif change == "text":
        (copy / MANIFEST).write_text("{}")
    elif change == "compiler":
        replace(manifest, compiler="an older emulator").write(copy)
    elif change == "apple":
        replace(manifest, target="apple").write(copy)
    return copy


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("library", "is not the library of the manifest"),
        ("no library", "No such file"),
        ("text", "is not a manifest of compiled shaders: 'format'"),
        ("compiler", "another version of the emulator made the library"),
        ("apple", "the library is for the apple driver"),
    ],
)
def test_what_does_not_fit_is_compiled_from_source(emulated: Path, tmp_path: Path, change: str, reason: str) -> None:
    prebuilt = PrebuiltShaders(driver(), damaged(emulated, tmp_path, change))
    assert reason in (prebuilt.reason or "")
    assert prebuilt.library(ROWS.source, CompileOptions(), None) is None


def test_an_installation_without_a_library_says_so(tmp_path: Path) -> None:
    assert PrebuiltShaders(driver(), tmp_path).reason == "this installation has no compiled shaders"
    with pytest.raises(FileNotFoundError):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST).write_text('{"format": 2}')
    with pytest.raises(FormatError, match="an unknown format"):
        Manifest.read(tmp_path)


# -- Apple's compiler -------------------------------------------------------------------------------------------------


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMac]:
    return install(monkeypatch, FakeMac(executes=False))


def test_shaders_are_one_library_for_apple(tmp_path: Path, mac: FakeMac) -> None:
    manifest = build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS, HALF, FLOAT, HEADS])
    names = json.loads((tmp_path / manifest.library).read_text())["kernels"]
    assert sorted(names) == sorted(name for shader in manifest.shaders for name in shader.kernels.values())
    assert {"softmax", "matmul_64x64__TILE_half", "matmul_64x64__TILE_float"} <= set(names)
    assert "attention_combine__HEAD_SIZE_64__VALUE_SIZE_64" in names
    assert (manifest.target, manifest.language, manifest.macos) == ("apple", (3, 1), 14)
    assert manifest.compiler == "Apple metal version 32023.404 (metalfe-32023.404)"
    assert Manifest.read(tmp_path) == manifest

    cache = ShaderCache(NativeDriver(), ArtifactStore(tmp_path / "cache"), tmp_path)
    assert cache.prebuilt.reason is None
    for variant, kernel in ((ROWS, "softmax"), (HALF, "matmul_32x32"), (FLOAT, "matmul_32x32")):
        assert cache.pipeline(variant.source, kernel, {}, CompileOptions(variant.defines)).name == kernel
    assert (cache.statistics.prebuilt, cache.statistics.compiled) == (3, 0)
    assert mac.device.libraries_compiled == 0
    assert len(mac.called("newLibraryWithURL:error:")) == 1


def test_machine_code_of_prebuilt_shaders_is_kept(tmp_path: Path, mac: FakeMac) -> None:
    build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS])
    for start in range(3):
        cache = ShaderCache(NativeDriver(), ArtifactStore(tmp_path / "cache"), tmp_path)
        for kernel in ("softmax", "rms_norm", "layer_norm"):
            cache.pipeline(ROWS.source, kernel)
        written = len(mac.called("serializeToURL:error:"))
        cache.flush()
        assert (mac.device.compilations, written) == ((3, 2), (3, 3), (3, 3))[start]  # after 1 and 2, then at the end
    assert cache.statistics.prebuilt == 1


def test_a_damaged_archive_does_not_stop_a_prebuilt_library(tmp_path: Path, mac: FakeMac) -> None:
    build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS])
    store = ArtifactStore(tmp_path / "cache")
    cache = ShaderCache(NativeDriver(), store, tmp_path)
    store.write(cache.key(ROWS.source, CompileOptions()), b"no archive")
    cache.pipeline(ROWS.source, "softmax")
    assert (cache.statistics.prebuilt, mac.device.compilations) == (1, 1)


def test_an_old_macos_compiles_from_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS])
    install(monkeypatch, FakeMac(macos=13))
    cache = ShaderCache(NativeDriver(), ArtifactStore(tmp_path / "cache"), tmp_path)
    assert cache.prebuilt.reason == "the library needs macOS 14; this is macOS 13"
    cache.pipeline(ROWS.source, "softmax")
    assert (cache.statistics.prebuilt, cache.statistics.compiled) == (0, 1)


def test_a_library_without_a_kernel_is_not_used(tmp_path: Path, mac: FakeMac) -> None:
    manifest = build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS])
    wrong = replace(manifest.shaders[0], kernels={"softmax": "softmax__other"})
    replace(manifest, shaders=(wrong,)).write(tmp_path)
    cache = ShaderCache(NativeDriver(), ArtifactStore(tmp_path / "cache"), tmp_path)
    cache.pipeline(ROWS.source, "softmax")
    assert "has no kernel softmax__other of shader" in (cache.prebuilt.reason or "")
    assert (cache.statistics.compiled, mac.device.libraries_compiled) == (1, 1)


def test_a_compiler_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MetalUnavailable, match="Apple's compiler needs macOS with Xcode"):
        build_for_apple(tmp_path, xcrun=(str(tmp_path / "xcrun"),), only=[ROWS])
    with pytest.raises(ShaderError, match="failed:\nerror: a kernel is defined twice"):
        build_for_apple(tmp_path, xcrun=XCRUN, only=[ROWS, ROWS])


def test_the_command_builds_for_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lbrx.devices.metal.build.emulated.variants", lambda: (ROWS,))
    assert main([str(tmp_path), "--emulated"]) == 0
    assert capsys.readouterr().out.endswith("shaders.emulated: 1 shaders, 3 kernels\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(tmp_path)]) == 1
    assert "needs macOS with Xcode" in capsys.readouterr().err
