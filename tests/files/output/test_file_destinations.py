"""Many threads that write into one file: one writes, the others leave their pieces to it."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.base.threads import run_chunks
from lbrx.errors import FileError
from lbrx.files.output import file_writer
from lbrx.files.output.file_writer import (
    BLOCK_BYTES,
    HUGE_PAGE_BYTES,
    LEAST_FILE_BYTES,
    LEAST_PIECE_BYTES,
    DirectWriter,
    FileDestination,
    FileWriter,
    writing,
)
from lbrx.memory.limits import limited
from lbrx.memory.scratch import scratch_arena
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.storage import Bytes

PIECE = 10_000


def _run(destination: FileDestination, pieces: int, threads: int) -> None:
    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            scratch = scratch_arena().get(PIECE)
            scratch.fill(number % 251)
            destination.submit(number * PIECE, scratch)

        return step

    run_chunks(pieces, threads, worker)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_all_pieces_are_written_and_all_buffers_come_back(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5))
    lent = scratch_arena().statistics().lent_bytes
    descriptor = os.open(path, os.O_RDWR)
    _run(FileDestination(FileWriter(descriptor, path), 5, DTYPES["u8"]), 300, threads)
    os.close(descriptor)
    expected = np.repeat(np.arange(300) % 251, PIECE).astype(np.uint8)
    assert path.read_bytes()[5:] == expected.tobytes()
    assert scratch_arena().statistics().lent_bytes == lent


def test_a_small_budget_leaves_no_room_for_waiting_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    scratch_arena().trim()
    with limited(4, "100kB"):
        _run(FileDestination(FileWriter(descriptor, path), 0, DTYPES["u8"]), 50, 4)
    os.close(descriptor)
    assert path.stat().st_size == 50 * PIECE


def test_a_failing_write_is_raised_and_stops_the_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)  # writing to it fails
    with pytest.raises(FileError, match=os.strerror(errno.EBADF).lower()):
        _run(FileDestination(FileWriter(descriptor, path), 0, DTYPES["u8"]), 50, 2)
    os.close(descriptor)


@pytest.mark.parametrize("threads", [2, 7])
def test_slots_of_one_file_are_written_by_one_thread_at_a_time(tmp_path: Path, threads: int) -> None:
    path, slots = tmp_path / "file", 40
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    file = _Watched(descriptor, path)

    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            destination = FileDestination(file, 5 * PIECE * number, DTYPES["u8"])
            for piece in range(5):
                scratch = scratch_arena().get(PIECE)
                scratch.fill(number + piece)
                destination.submit(piece * PIECE, scratch)

        return step

    run_chunks(slots, threads, worker)
    os.close(descriptor)
    expected = np.repeat(np.add.outer(np.arange(slots), np.arange(5)).reshape(-1), PIECE).astype(np.uint8)
    assert path.read_bytes() == expected.tobytes()
    assert 0 < file.left == file.left_and_written
    assert file.most_at_once == 1


class _Watched(FileWriter):
    """Counts the threads that write at a time."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, path)
        self.at_once = self.most_at_once = 0

    def write(self, offset: int, data: Bytes) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.0005)
        super().write(offset, data)
        self.at_once -= 1


def _pieces_of(rng: np.random.Generator, file_bytes: int) -> list[tuple[int, int]]:
    """Neighbouring runs of bytes that cover a file: within a block, across blocks, and on their boundaries."""
    cuts = {0, file_bytes, BLOCK_BYTES, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1, *rng.integers(1, file_bytes, 60).tolist()}
    return list(pairwise(sorted(cuts)))


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_that_begin_and_end_anywhere_go_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(file_writer, "LEAST_FILE_BYTES", 0)
    monkeypatch.setattr(file_writer, "LEAST_PIECE_BYTES", 2 * BLOCK_BYTES)
    path, rng = tmp_path / "file", np.random.default_rng(threads)
    content = rng.integers(0, 256, 1_000_003, np.uint8)
    pieces = _pieces_of(rng, content.size)
    path.write_bytes(bytes(content.size))
    descriptor = os.open(path, os.O_RDWR)
    with writing(descriptor, path, content.size, to_disk=True) as file:

        def worker() -> Callable[[int], None]:
            def step(number: int) -> None:
                start, stop = pieces[number]
                buffer = file.borrow_buffer(start, stop - start)
                buffer[:] = content[start:stop]
                file.submit(start, buffer)

            return step

        run_chunks(len(pieces), threads, worker)
        file.finish()
        assert file.left == file.left_and_written == (len(pieces) if isinstance(file, DirectWriter) else 0)
    os.close(descriptor)
    assert path.read_bytes() == content.tobytes()


def test_what_a_file_system_refuses_goes_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5 * BLOCK_BYTES))
    descriptor = os.open(path, os.O_RDWR)
    direct = os.open(path, os.O_WRONLY)
    monkeypatch.setattr(file_writer, "LEAST_PIECE_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(system, "pwrite_past_cache", lambda *_: BLOCK_BYTES)  # the second block and on: refused
    writer = DirectWriter(descriptor, direct, path)
    buffer = writer.borrow_buffer(100, 4 * BLOCK_BYTES)
    buffer[:] = 7
    writer.submit(100, buffer)
    writer.finish()
    writer.stop()
    for each in (descriptor, direct):
        os.close(each)
    expected = np.zeros(5 * BLOCK_BYTES, np.uint8)
    expected[100 : 100 + 4 * BLOCK_BYTES] = 7
    expected[BLOCK_BYTES : 2 * BLOCK_BYTES] = 0  # which the replaced call has claimed to have written
    assert path.read_bytes() == expected.tobytes()


def _submit_and_finish(writer: DirectWriter, pieces: int, nbytes: int) -> None:
    for piece in range(pieces):
        writer.submit(piece * nbytes, writer.borrow_buffer(piece * nbytes, nbytes))
    writer.finish()


@pytest.mark.parametrize("nbytes", [PIECE, LEAST_PIECE_BYTES])
def test_an_error_of_a_writing_thread_reaches_those_that_submit(tmp_path: Path, nbytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)
    writer = DirectWriter(descriptor, descriptor, path)
    with pytest.raises(FileError, match=os.strerror(errno.EBADF).lower()):
        _submit_and_finish(writer, 100, nbytes)
    assert writer.left_and_written == 0 < writer.left  # what failed is not taken for written
    writer.stop()
    os.close(descriptor)
    assert file_writer._huge_pages().statistics().lent_bytes <= 2 * nbytes + HUGE_PAGE_BYTES  # one was not taken


@pytest.mark.skipif(sys.platform != "linux", reason="writes past the file cache are made on Linux only")
def test_a_large_file_is_written_past_the_cache_and_a_small_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    kinds = []
    for file_bytes, to_disk in ((LEAST_FILE_BYTES, True), (LEAST_FILE_BYTES - 1, True), (LEAST_FILE_BYTES, False)):
        with writing(descriptor, path, file_bytes, to_disk=to_disk) as file:
            kinds.append(type(file))
    os.close(descriptor)
    assert kinds == [DirectWriter, FileWriter, FileWriter]


# -- back-pressure --------------------------------------------------------------------------------------------------


def _sparse_file(tmp_path: Path, nbytes: int = 64 << 20) -> tuple[Path, int]:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(nbytes)
    return path, os.open(path, os.O_RDWR)


def _submit_pieces(writer: FileWriter, numbers: range) -> None:
    for number in numbers:
        writer.submit(number << 20, writer.borrow_buffer(number << 20, 1 << 20))


def test_threads_that_compute_wait_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, descriptor = _sparse_file(tmp_path)
    gate = threading.Event()
    monkeypatch.setattr(DirectWriter, "_write_blocks", lambda *_: gate.wait(5))
    writer = DirectWriter(descriptor, descriptor, path)
    thread = threading.Thread(target=_submit_pieces, args=(writer, range(32)))
    thread.start()
    thread.join(0.3)
    left = writer.left
    gate.set()
    thread.join()
    writer.finish()
    writer.stop()
    os.close(descriptor)
    assert left <= 8


def test_pieces_that_wait_for_another_thread_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, descriptor = _sparse_file(tmp_path)
    gate = threading.Event()
    monkeypatch.setattr(FileWriter, "write", lambda *_: gate.wait(5))
    writer = FileWriter(descriptor, path)
    threads = [
        threading.Thread(target=_submit_pieces, args=(writer, range(16 * number, 16 * number + 16)))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    threads[0].join(0.3)
    waiting_bytes = writer._waiting_bytes
    gate.set()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert waiting_bytes <= file_writer.WAITING_BYTES


def test_a_piece_counts_only_when_those_before_it_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, descriptor = _sparse_file(tmp_path, 8192)
    gate, second = threading.Event(), threading.Event()

    def slow(_writer: DirectWriter, offset: int, _data: Bytes) -> None:
        if offset == 0:
            gate.wait(5)
        else:
            second.set()

    monkeypatch.setattr(DirectWriter, "_write_blocks", slow)
    writer = DirectWriter(descriptor, descriptor, path)
    for offset in (0, 4096):
        writer.submit(offset, writer.borrow_buffer(offset, 4096))
    second.wait(5)
    time.sleep(0.05)
    counted = writer.left_and_written
    gate.set()
    writer.finish()
    assert (counted, writer.left_and_written) == (0, 2)
    writer.stop()
    os.close(descriptor)


def test_an_error_is_raised_at_the_next_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, descriptor = _sparse_file(tmp_path)

    def fail(*_: object) -> None:
        raise FileError("disk full")

    monkeypatch.setattr(DirectWriter, "_write_blocks", fail)
    writer = DirectWriter(descriptor, descriptor, path)
    _submit_pieces(writer, range(1))
    for thread in writer._threads:
        thread.join()
    with pytest.raises(FileError, match="disk full"):
        _submit_pieces(writer, range(1, 2))
    writer.stop()
    os.close(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="writes past the file cache are made on Linux only")
def test_with_little_memory_nothing_goes_past_the_cache(tmp_path: Path) -> None:
    path, descriptor = _sparse_file(tmp_path, LEAST_FILE_BYTES)
    with limited(None, "64MB"), writing(descriptor, path, LEAST_FILE_BYTES, to_disk=True) as writer:
        assert not isinstance(writer, DirectWriter)
    os.close(descriptor)


def test_a_writer_past_the_cache_leaves_no_open_file(tmp_path: Path) -> None:
    path, descriptor = _sparse_file(tmp_path, LEAST_FILE_BYTES)
    before = os.listdir("/dev/fd")
    with writing(descriptor, path, LEAST_FILE_BYTES, to_disk=True):
        pass
    assert len(os.listdir("/dev/fd")) == len(before)
    os.close(descriptor)


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_past_the_cache_writes_all_or_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(file_writer, "LEAST_FILE_BYTES", 0)
    write = DirectWriter._write_blocks

    def slow(writer: DirectWriter, offset: int, data: Bytes) -> None:
        time.sleep(0.02)
        if fails:
            raise FileError("disk full")
        write(writer, offset, data)

    monkeypatch.setattr(DirectWriter, "_write_blocks", slow)
    values = np.random.default_rng(0).random(1 << 20, np.float32)
    tensors = {"w": lbrx.tensor(values) * 2.0, "v": lbrx.tensor(values) + 1.0}
    if fails:
        with pytest.raises(FileError, match="disk full"):
            lbrx.save(tmp_path / "x.safetensors", tensors)
        return
    lbrx.save(tmp_path / "x.safetensors", tensors)
    saved = lbrx.open(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(saved["w"].numpy(), values * 2)
    np.testing.assert_array_equal(saved["v"].numpy(), values + 1)


def test_pieces_that_wait_take_a_quarter_of_a_small_budget(tmp_path: Path) -> None:
    path, descriptor = _sparse_file(tmp_path)
    writer = FileWriter(descriptor, path)
    with limited(None, "8MB"):
        assert writer._has_room_for(np.empty(1 << 20, np.uint8))
        assert not writer._has_room_for(np.empty(3 << 20, np.uint8))
    os.close(descriptor)
