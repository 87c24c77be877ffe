"""Mappings, advice and durability, as the real system gives them."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lbrx.base import atomic_write, system
from lbrx.base.system import mapping
from lbrx.errors import FileError, TruncatedError

MIB = 1 << 20
PAGE = system.page_bytes()
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="checks what the Linux kernel does")


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[int]:
    """A file of 8 MiB, open for reading and writing."""
    path = tmp_path / "weights"
    path.write_bytes(np.arange(MIB, dtype=np.uint64).tobytes())
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def mapped(fd: int, offset: int = 0, length: int = 8 * MIB) -> mmap.mmap:
    result = system.map_readonly(fd, offset, length)
    assert result is not None
    return result


class TestMapReadonly:
    def test_page_bytes(self) -> None:
        assert system.page_bytes() == os.sysconf("SC_PAGESIZE")

    @pytest.mark.parametrize("offset", [0, 1, PAGE, PAGE + 17, 3 * PAGE - 1, 8 * MIB - 300])
    def test_any_offset(self, weights: int, offset: int) -> None:
        result = mapped(weights, offset, 300)
        assert result[offset % PAGE :] == os.pread(weights, 300, offset)
        with pytest.raises(TypeError):
            result[0] = 1

    def test_mapping_outlives_its_descriptor(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"weights")
        fd = system.open_read(tmp_path / "a")
        result = mapped(fd, 0, 7)
        os.close(fd)
        (tmp_path / "a").unlink()
        assert result[:] == b"weights"

    @pytest.mark.parametrize(("offset", "length"), [(0, 8 * MIB + 1), (8 * MIB, 1), (20 * MIB, 5)])
    def test_past_the_end(self, weights: int, offset: int, length: int) -> None:
        message = rf"^model: has {8 * MIB} bytes, but bytes {offset} to {offset + length} were expected$"
        with pytest.raises(TruncatedError, match=message):
            system.map_readonly(weights, offset, length, "model")

    def test_none_for_a_pipe_and_for_nothing(self, weights: int) -> None:
        read_end, write_end = os.pipe()
        assert system.map_readonly(read_end, 0, 10) is None
        assert system.map_readonly(weights, 0, 0) is None
        os.close(read_end)
        os.close(write_end)

    @pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOMEM])
    def test_none_where_the_system_refuses(self, weights: int, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        monkeypatch.setattr(mmap, "mmap", _failing(code))
        assert system.map_readonly(weights, 0, 10) is None

    def test_other_failures_are_errors(self, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mmap, "mmap", _failing(errno.EIO))
        with pytest.raises(FileError, match=r"^model: cannot map bytes 5 to 15: input/output error$"):
            system.map_readonly(weights, 5, 10, "model")


def _failing(code: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def resident_pages(result: mmap.mmap) -> int:
    """Pages of a mapping that this process has mapped."""
    address = hex(np.frombuffer(result, np.uint8).ctypes.data)[2:]
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address}-"):
            return next(int(entry.split()[1]) for entry in lines if entry.startswith("Rss:")) * 1024 // PAGE
    raise AssertionError(f"no mapping starts at {address}")


class TestAdvice:
    @settings(deadline=None)
    @given(st.integers(0, 10 * PAGE), st.integers(0, 12 * PAGE), st.integers(1, 8 * PAGE))
    @example(0, PAGE + 5, 3 * PAGE)
    @example(5, 2 * PAGE, 3 * PAGE)
    @example(PAGE + 5, 2 * PAGE, 2 * PAGE + 7)
    def test_ranges_are_clipped_and_rounded(self, start: int, length: int, nbytes: int) -> None:
        asked: list[tuple[int, int, int]] = []

        def record(address: int, extent: int, advice: int) -> int:
            asked.append((address, extent, advice))
            return 0

        anonymous = mmap.mmap(-1, nbytes)
        base = np.frombuffer(anonymous, np.uint8).ctypes.data
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapping, "_madvise", record)
            assert system.PinnedMapping(anonymous).will_need(start, length)
            needed, asked[:] = list(asked), []
            assert system.PinnedMapping(anonymous).dont_need(start, length)
        wanted = range(start, min(start + length, nbytes))
        assert all(extent > 0 and base <= address for address, extent, _ in needed + asked)
        assert all(address + extent <= base + nbytes for address, extent, _ in needed + asked)
        touched = {byte // PAGE for byte in (wanted[0], wanted[-1])} if wanted else set()
        if wanted:
            ((address, extent, advice),) = needed
            assert (advice, (address - base) // PAGE, (address - base) % PAGE) == (3, min(touched), 0)
            assert (address - base + extent - 1) // PAGE == max(touched)
        whole = [
            page
            for page in range(-(-nbytes // PAGE))
            if start <= page * PAGE and min((page + 1) * PAGE, nbytes) <= start + length
        ]
        if whole:
            ((address, extent, advice),) = asked
            assert (advice, address - base) == (4, whole[0] * PAGE)
            assert -(-extent // PAGE) == len(whole)
        else:
            assert asked == []

    @linux_only
    def test_dont_need_unmaps(self, weights: int) -> None:
        result = mapped(weights)
        assert resident_pages(result) == 0
        assert int(np.frombuffer(result, np.uint64).max()) == MIB - 1
        assert resident_pages(result) == 8 * MIB // PAGE
        assert system.PinnedMapping(result).dont_need(10, 2 * MIB)
        assert resident_pages(result) <= 6 * MIB // PAGE + 1  # a huge page at an edge goes as a whole
        assert np.frombuffer(result, np.uint64)[12345] == 12345

    @linux_only
    @pytest.mark.parametrize("is_known", [True, False])
    def test_populate_maps_every_page(self, weights: int, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
        if not is_known:  # as before Linux 5.14, and on macOS
            monkeypatch.setattr(mapping, "_MADV_POPULATE_READ", -1)
        result = mapped(weights)
        system.PinnedMapping(result).populate(PAGE + 1, 2 * MIB)
        assert 2 * MIB // PAGE + 1 <= resident_pages(result) <= 8 * MIB // PAGE
        system.PinnedMapping(result).populate(0, 8 * MIB)
        assert resident_pages(result) == 8 * MIB // PAGE

    def test_how_a_range_will_be_read(self, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
        advised: list[tuple[int, int]] = []
        monkeypatch.setattr(mapping, "_madvise", lambda _, length, advice: advised.append((length, advice)) or 0)
        for access in ("normal", "sequential", "random"):
            assert system.PinnedMapping(mapped(weights)).expect(access, PAGE + 1, PAGE)
        assert advised == [(PAGE + 1, mmap.MADV_NORMAL), (PAGE + 1, mmap.MADV_SEQUENTIAL), (PAGE + 1, mmap.MADV_RANDOM)]

    def test_how_a_file_will_be_read(self, weights: int) -> None:
        read_end, write_end = os.pipe()
        for access in ("normal", "sequential", "random"):
            assert system.expect_access(weights, access, 0, 8 * MIB)
            assert not system.expect_access(read_end, access, 0, 10)
        os.close(read_end)
        os.close(write_end)

    def test_refused_advice_is_false(self, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mapping, "_madvise", lambda *_: -1)
        assert not system.PinnedMapping(mapped(weights)).will_need(0, MIB)

    def test_closed_mapping(self, weights: int) -> None:
        result = mapped(weights)
        result.close()
        with pytest.raises(ValueError, match="closed"):
            system.PinnedMapping(result)

    def test_a_pinned_mapping_cannot_be_closed(self, weights: int) -> None:
        result = mapped(weights)
        pin = system.PinnedMapping(result)
        with pytest.raises(BufferError):
            result.close()
        assert pin.will_need(0, MIB)
        del pin
        result.close()

    def test_file_advice(self, weights: int) -> None:
        read_end, write_end = os.pipe()
        assert system.read_ahead(weights, 0, 8 * MIB)
        assert not system.read_ahead(read_end, 0, 10)
        assert not system.seems_cached(read_end, 0, 10)
        os.close(read_end)
        os.close(write_end)
        with pytest.raises(FileError, match=rf"file descriptor {read_end}: cannot advise"):
            system.read_ahead(read_end, 0, 10)

    @linux_only
    def test_seems_cached(self, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
        positions: list[int] = []

        def only_the_first_mib(_fd: int, _buffers: object, position: int, flags: int) -> int:
            positions.append(position)
            assert flags == 8  # RWF_NOWAIT
            if position >= MIB:
                raise BlockingIOError(errno.EAGAIN, "would block")
            return 1

        assert not system.seems_cached(weights, 0, 9 * MIB)
        monkeypatch.setattr(os, "preadv", only_the_first_mib)
        assert system.seems_cached(weights, 10, MIB - 10)
        assert positions == [10, 10 + (MIB - 10) // 2, MIB - 1]
        assert not system.seems_cached(weights, 10, MIB)


class TestDurability:
    def test_replace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "new").write_bytes(b"new")
        (tmp_path / "target").write_bytes(b"old")
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
        atomic_write.replace(tmp_path / "new", tmp_path / "target")
        assert synced == [tmp_path.stat().st_ino]
        assert (tmp_path / "target").read_bytes() == b"new"
        assert not (tmp_path / "new").exists()

    @linux_only
    def test_flush_is_an_fsync(self, weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
        system.flush_to_disk(weights)
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        system.flush_to_disk(weights)
        assert synced == [weights]

    def test_directories_that_cannot_be_flushed_are_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", _failing(errno.EINVAL))
        system.sync_directory(tmp_path)
        monkeypatch.setattr(os, "fsync", _failing(errno.EIO))
        with pytest.raises(FileError, match="cannot flush the directory: input/output error"):
            system.sync_directory(tmp_path)

    def test_errors_name_the_place(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"target: cannot replace by .*absent: no such file"):
            atomic_write.replace(tmp_path / "absent", tmp_path / "target")
        with pytest.raises(FileError, match=r"absent: cannot flush the directory: no such file"):
            system.sync_directory(tmp_path / "absent")
