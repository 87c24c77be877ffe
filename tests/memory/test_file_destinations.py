"""Many threads that write into one file: one writes, the others leave their pieces to it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lbrx.destinations import FileDestination, FileWriter
from lbrx.devices.cpu.threads import run_chunks
from lbrx.dtypes import DTYPES
from lbrx.errors import FileError
from lbrx.limits import limited
from lbrx.memory.scratch import scratch_arena
from lbrx.storage import Bytes

PIECE = 10_000


def _run(destination: FileDestination, pieces: int, threads: int) -> None:
    def worker() -> Callable[[int], None]:
        def step(number: int) -> None:
            scratch = scratch_arena().get(PIECE)
            scratch.fill(number % 251)
            destination.hand_over(number * PIECE, scratch)

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
                destination.hand_over(piece * PIECE, scratch)

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
