"""WindowCache: pages are wrapped once, the least recently used go, and files are not kept open."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lbrx.base.system import page_bytes
from lbrx.devices.metal.context.windows import WindowCache
from lbrx.devices.metal.driver.buffers import SharedMemory
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.memory import WrappedBuffer
from lbrx.tensors.open_file import OpenFile
from support.metal_shaders import driver, needs_clang

pytestmark = needs_clang
MIB = 1 << 20


def opened(path: Path, nbytes: int = 4 * MIB) -> OpenFile:
    path.write_bytes(np.random.default_rng(0).bytes(nbytes))
    return OpenFile(path)


def wrap(cache: WindowCache, file: OpenFile, start: int, nbytes: int) -> SharedMemory:
    """The bytes of a file from a page on, checked against the file."""
    assert file.address is not None
    window = cache.wrap(file, file.address + start, nbytes)
    assert window is not None
    buffer = window.buffer
    assert isinstance(buffer, SharedMemory)
    seen = buffer.view()[window.offset : window.offset + nbytes]
    assert (seen == np.frombuffer(file.path.read_bytes(), np.uint8)[start : start + nbytes]).all()
    return buffer


def test_pages_are_wrapped_once_and_neighbours_together(tmp_path: Path) -> None:
    cache, file, page = WindowCache(driver()), opened(tmp_path / "a"), page_bytes()
    first = wrap(cache, file, 0, page)
    assert wrap(cache, file, 0, page) is first
    assert wrap(cache, file, 5 * page, 2 * page) is first
    assert first.nbytes == MIB
    assert wrap(cache, file, MIB - page, 2 * page).nbytes == 2 * MIB
    statistics = cache.statistics
    assert (statistics.hits, statistics.wrapped, statistics.held_bytes) == (2, 2, 3 * MIB)


def test_a_window_ends_with_the_file(tmp_path: Path) -> None:
    cache, page = WindowCache(driver()), page_bytes()
    file = opened(tmp_path / "a", 3 * page)
    assert wrap(cache, file, page, page).nbytes == 3 * page


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache, file, page = WindowCache(driver(), limit_bytes=2 * MIB), opened(tmp_path / "a"), page_bytes()
    first, second = wrap(cache, file, 0, page), wrap(cache, file, MIB, page)
    assert wrap(cache, file, 0, page) is first
    wrap(cache, file, 2 * MIB, page)  # in place of the second
    assert wrap(cache, file, 0, page) is first
    assert wrap(cache, file, MIB, page) is not second
    assert (cache.statistics.evicted, cache.statistics.held_bytes) == (2, 2 * MIB)
    assert second.view().size == MIB  # still valid
    whole = wrap(cache, file, 0, 4 * MIB)
    assert cache.statistics.held_bytes == 2 * MIB  # larger than the cache
    assert whole.nbytes == 4 * MIB


def test_windows_go_with_their_file(tmp_path: Path) -> None:
    cache = WindowCache(driver())
    file, other = opened(tmp_path / "a"), opened(tmp_path / "b", MIB)
    buffer = wrap(cache, file, 0, page_bytes())
    wrap(cache, other, 0, page_bytes())
    contents = file.path.read_bytes()[:16]
    del file
    gc.collect()
    assert cache.statistics.held_bytes == MIB
    assert buffer.view()[:16].tobytes() == contents  # the buffer keeps the mapping, not the file
    cache.clear()
    assert cache.statistics.held_bytes == 0


def test_a_device_that_takes_no_pages_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedDriver, "wrap", lambda *_, **__: None)
    cache, file = WindowCache(driver()), opened(tmp_path / "a", MIB)
    assert file.address is not None
    assert cache.takes_pages
    assert cache.wrap(file, file.address, page_bytes()) is None
    assert not cache.takes_pages


def test_windows_of_the_largest_size_are_not_rounded(tmp_path: Path) -> None:
    file, page = opened(tmp_path / "a"), page_bytes()
    small = EmulatedDriver(info=replace(driver().info, max_buffer_bytes=MIB))
    buffer = wrap(WindowCache(small), file, page, MIB)
    assert isinstance(buffer, WrappedBuffer)
    assert buffer.nbytes == MIB
