"""Many threads that write into one file: one writes, the others leave their pieces to it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lbrx.destinations import FileDestination
from lbrx.devices.cpu.threads import run_chunks
from lbrx.dtypes import DTYPES
from lbrx.errors import FileError
from lbrx.limits import limited
from lbrx.memory.scratch import scratch_arena

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
    _run(FileDestination(descriptor, 5, DTYPES["u8"], path), 300, threads)
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
        _run(FileDestination(descriptor, 0, DTYPES["u8"], path), 50, 4)
    os.close(descriptor)
    assert path.stat().st_size == 50 * PIECE


def test_a_failing_write_is_raised_and_stops_the_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)  # writing to it fails
    with pytest.raises(FileError, match=os.strerror(errno.EBADF).lower()):
        _run(FileDestination(descriptor, 0, DTYPES["u8"], path), 50, 2)
    os.close(descriptor)
