"""Many threads that write into one file: one writes, the others leave their pieces to it."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

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
