"""ShaderCache: in memory, on disk, across processes; damaged and foreign entries."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lbrx.devices.metal.driver import BufferBinding, CompileOptions, GpuFamily, Pipeline
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.shader_cache import ShaderCache
from lbrx.devices.metal.emulator import toolchain
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from support.metal_shaders import PREFIX, driver, needs_clang

pytestmark = needs_clang
SOURCE = (
    PREFIX
    + """
#ifndef STEP
#define STEP 1
#endif
constant float factor [[function_constant(0)]];
constant float scale = is_function_constant_defined(factor) ? factor : 10;
kernel void step_up(device float* x, uint i [[thread_position_in_grid]]) { x[i] = scale * (x[i] + STEP); }
kernel void other(device float* x, uint i [[thread_position_in_grid]]) { x[i] = -x[i]; }
"""
)


def value(pipeline: Pipeline) -> float:
    """What the kernel makes of 1."""
    buffer = driver().allocate(4)
    buffer.view().view(np.float32)[:] = 1
    batch = CommandBatch(driver())
    batch.dispatch(pipeline, {0: BufferBinding(buffer)}, (1,), (1,))
    batch.wait()
    return float(buffer.view().view(np.float32)[0])


def cache_in(path: Path) -> ShaderCache:
    return ShaderCache(driver(), ArtifactStore(path))


def test_a_pipeline_is_made_once(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    first = cache.pipeline(SOURCE, "step_up")
    assert cache.pipeline(SOURCE, "step_up") is first
    cache.pipeline(SOURCE, "other")
    assert (cache.statistics.compiled, cache.statistics.loaded, cache.statistics.hits) == (1, 0, 1)


def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    cache_in(tmp_path).pipeline(SOURCE, "step_up")
    cache = cache_in(tmp_path)
    assert value(cache.pipeline(SOURCE, "step_up")) == 20
    assert value(cache.pipeline(SOURCE, "other")) == -1
    assert (cache.statistics.compiled, cache.statistics.loaded) == (0, 1)


def test_function_constants_need_no_second_compilation(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    pipelines = [cache.pipeline(SOURCE, "step_up", {"factor": factor}) for factor in (2, 3)]
    plain = cache.pipeline(SOURCE, "step_up")
    assert [value(each) for each in (*pipelines, plain)] == [4, 6, 20]
    assert cache.statistics.compiled == 1


def test_options_make_another_shader(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    two = cache.pipeline(SOURCE, "step_up", None, CompileOptions(defines=(("STEP", "2"),)))
    assert (value(cache.pipeline(SOURCE, "step_up")), value(two)) == (20, 30)
    assert cache.statistics.compiled == 2


@pytest.mark.parametrize(
    "change",
    [{"family": GpuFamily.APPLE9}, {"system_version": "another"}, {"driver_version": "another"}],
    ids=lambda change: next(iter(change)),
)
def test_another_device_or_system_does_not_share_entries(tmp_path: Path, change: dict[str, object]) -> None:
    cache_in(tmp_path).pipeline(SOURCE, "step_up")
    other = EmulatedDriver(info=replace(driver().info, **change))  # type: ignore[arg-type]
    cache = ShaderCache(other, ArtifactStore(tmp_path))
    cache.pipeline(SOURCE, "step_up")
    assert cache.statistics.compiled == 1


def test_instrumented_kernels_do_not_share_entries() -> None:
    looking = EmulatedDriver(EmulatorSettings(find_races=True))
    assert looking.info.identity != driver().info.identity
    assert driver().with_settings(EmulatorSettings(find_races=True)).info.identity == looking.info.identity


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "foreign"])
def test_a_damaged_or_foreign_entry_is_made_anew(tmp_path: Path, damage: str) -> None:
    cache = cache_in(tmp_path)
    cache.pipeline(SOURCE, "step_up")
    store = ArtifactStore(tmp_path)
    path = store.path(cache.key(SOURCE, CompileOptions()))
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not a shader")
    else:  # whole and with the right checksum, but of another kind
        store.write(cache.key(SOURCE, CompileOptions()), b"\x04\0\0\0null")
    again = cache_in(tmp_path)
    assert value(again.pipeline(SOURCE, "step_up")) == 20
    assert again.statistics.compiled == 1
    assert value(cache_in(tmp_path).pipeline(SOURCE, "step_up")) == 20


def test_an_entry_under_a_foreign_name_is_not_trusted(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.write("one", b"compiled")
    store.path("one").rename(store.path("two"))
    assert store.read("two") is None


def test_where_nothing_can_be_written_every_start_compiles(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    for _ in range(2):
        cache = cache_in(blocked / "cache")
        assert value(cache.pipeline(SOURCE, "step_up")) == 20
        assert cache.statistics.compiled == 1


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lbrx.devices.metal.driver.artifacts import ArtifactStore\n"
        "from lbrx.devices.metal.emulator.driver import EmulatedDriver\n"
        "from lbrx.devices.metal.driver.shader_cache import ShaderCache\n"
        "cache = ShaderCache(EmulatedDriver(), ArtifactStore(Path(sys.argv[1])))\n"
        "for k in range(6):\n"
        "    cache.pipeline(f'kernel void k{k}(device float* x) {{ x[0] = {k}; }}', f'k{k}')\n"
        "print(cache.statistics.compiled + cache.statistics.loaded)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in processes] == ["6", "6"]
    assert not list(tmp_path.glob("*.tmp"))
    cache = cache_in(tmp_path)
    for k in range(6):
        assert value(cache.pipeline(f"kernel void k{k}(device float* x) {{ x[0] = {k}; }}", f"k{k}")) == k
    assert cache.statistics.compiled == 0


def test_a_missing_function_is_named_with_the_nearest(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    for _ in range(2):  # compiled, then from disk
        with pytest.raises(ShaderError, match="the shader has no kernel 'step_upp'; did you mean 'step_up'"):
            cache.pipeline(SOURCE, "step_upp")
        cache = cache_in(tmp_path)


def test_a_missing_function_constant_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShaderError, match="kernel 'step_up' has no function constant 'factors'; did you mean 'factor'"):
        cache_in(tmp_path).pipeline(SOURCE, "step_up", {"factors": 1})


def test_a_compile_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ShaderError, match=r"shader\.metal:3:"):
        cache_in(tmp_path).pipeline(PREFIX + "kernel void k(device float* x) { x[0] = y; }", "k")
    assert not list(tmp_path.iterdir())


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
    with pytest.raises(MetalUnavailable, match="pip install ziglang"):
        toolchain.find_toolchain.__wrapped__()


def test_an_old_clang_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = tmp_path / "clang"
    clang.write_text("#!/bin/sh\necho 'clang version 15.0.7'\n")
    clang.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain._clang_toolchain() is None
    clang.write_text("#!/bin/sh\necho 'clang version 21.1.0'\n")
    chosen = toolchain._clang_toolchain()
    assert chosen is not None
    assert chosen.compiler == (str(clang),)
