"""Reading ahead and dropping behind: which bytes are advised when, and the memory it saves."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbrx.base.system import PinnedMapping, map_readonly, page_bytes
from lbrx.errors import UsageError
from lbrx.memory import ReadAhead, Span, prefetch
from support.resident import resident_bytes

MIB = 1 << 20
PAGE = page_bytes()


def whole_pages(start: int, end: int) -> range:
    return range(-(-start // PAGE), end // PAGE)


class Recorder:
    """Notes the advice that pinned mappings and files get, as (start, end) ranges."""

    def __init__(self) -> None:
        self.needed: list[tuple[int, int]] = []
        self.dropped: list[tuple[int, int]] = []
        self.file_reads: list[tuple[int, int, int]] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def will_need(_: PinnedMapping, start: int, length: int) -> bool:
            self.needed.append((start, start + length))
            return True

        def dont_need(_: PinnedMapping, start: int, length: int) -> bool:
            self.dropped.append((start, start + length))
            return True

        def read_ahead(fd: int, offset: int, length: int) -> bool:
            self.file_reads.append((fd, offset, length))
            return True

        patch.setattr(PinnedMapping, "will_need", will_need)
        patch.setattr(PinnedMapping, "dont_need", dont_need)
        patch.setattr(prefetch, "read_ahead", read_ahead)

    def dropped_pages(self) -> set[int]:
        return {page for start, end in self.dropped for page in whole_pages(start, end)}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    result = Recorder()
    result.install(monkeypatch)
    return result


@pytest.fixture
def anonymous() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 64 * PAGE) as mapping:
        yield mapping


def test_the_window_moves(anonymous: mmap.mmap, recorder: Recorder) -> None:
    steps = [Span(anonymous, index * 100, 100) for index in range(10)]
    window = ReadAhead(steps, ahead_bytes=250)
    window.begin(0)
    assert recorder.needed == [(0, 400)]  # the step itself and what starts within 250 bytes after it
    window.begin(1)
    assert recorder.needed == [(0, 400), (400, 500)]
    window.begin(0)
    window.begin(5)
    assert recorder.needed == [(0, 400), (400, 500), (500, 900)]
    window.begin(4)
    window.begin(9)
    assert recorder.needed[3:] == [(900, 1000)]
    window.close()


def test_at_least_the_next_step_is_read_ahead(anonymous: mmap.mmap, recorder: Recorder) -> None:
    with ReadAhead([Span(anonymous, index * 100, 100) for index in range(5)], ahead_bytes=0) as window:
        window.begin(2)
    assert recorder.needed == [(0, 400)]


def test_spans_of_several_inputs_are_merged(anonymous: mmap.mmap, recorder: Recorder) -> None:
    with mmap.mmap(-1, 4096) as other:
        steps = [(Span(anonymous, index * 10, 10), Span(other, 50 + index * 20, 20)) for index in range(6)]
        with ReadAhead(steps, ahead_bytes=60) as window:
            window.begin(0)
        assert recorder.needed == [(0, 30), (50, 110)]


def test_a_descriptor_is_preferred(tmp_path: Path, recorder: Recorder) -> None:
    (tmp_path / "weights").write_bytes(bytes(1000))
    fd = os.open(tmp_path / "weights", os.O_RDONLY)
    mapping = map_readonly(fd, 0, 1000)
    steps = [Span(mapping, 100, 50, fd, 5_000_100), Span(mapping, 150, 50, fd, 5_000_150), Span(None, 0, 9, fd, 700)]
    with ReadAhead(steps) as window, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "seems_cached", lambda _fd, offset, _length: offset == 700)
        window.begin(0)
        for step in range(3):
            window.done(step)
    assert recorder.file_reads == [(fd, 5_000_100, 100)]  # the last span was in the cache already
    assert recorder.needed == []
    os.close(fd)


@settings(deadline=None)
@given(cuts=st.sets(st.integers(1, 64 * PAGE - 1), max_size=30), order=st.randoms(use_true_random=False))
def test_pages_in_use_are_not_dropped(cuts: set[int], order: Random) -> None:
    recorder = Recorder()
    bounds = [0, *sorted(cuts), 64 * PAGE]
    ranges = list(pairwise(bounds))
    finishing = list(range(len(ranges)))
    order.shuffle(finishing)
    unfinished = set(finishing)
    with pytest.MonkeyPatch.context() as patch, mmap.mmap(-1, 64 * PAGE) as mapping:
        recorder.install(patch)
        window = ReadAhead([Span(mapping, start, end - start) for start, end in ranges])
        for step in finishing:
            unfinished.discard(step)
            window.done(step)
            used = {page for i in unfinished for page in range(ranges[i][0] // PAGE, -(-ranges[i][1] // PAGE))}
            assert not recorder.dropped_pages() & used
        window.close()
    assert recorder.dropped == [ranges[step] for step in finishing]
    assert recorder.dropped_pages() == {page for start, end in ranges for page in whole_pages(start, end)}


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1), (64 * PAGE - 4, 5)])
def test_spans_outside_the_mapping_are_refused(anonymous: mmap.mmap, start: int, length: int) -> None:
    with pytest.raises(UsageError, match=f"not inside {64 * PAGE} mapped bytes"):
        ReadAhead([Span(anonymous, start, length)])
    with pytest.raises(UsageError, match="neither a mapping nor a file descriptor"):
        ReadAhead([Span(None, 0, 5)])


def test_mappings_can_be_closed_after_close(recorder: Recorder) -> None:
    mapping = mmap.mmap(-1, 4096)
    window = ReadAhead([Span(mapping, 0, 100)])
    with pytest.raises(BufferError):
        mapping.close()
    window.close()
    mapping.close()
    window.begin(0)
    window.done(0)
    assert recorder.needed == []


def largest_growth(path: Path, drops: bool) -> int:
    """By how much the resident memory grows while two threads read a whole file through a window."""
    fd = os.open(path, os.O_RDONLY)
    nbytes = os.fstat(fd).st_size
    mapping = map_readonly(fd, 0, nbytes)
    assert mapping is not None
    values = np.frombuffer(mapping, np.uint8)
    step_bytes = 2 * MIB + 1000
    starts = range(0, nbytes, step_bytes)
    steps = [Span(mapping, start, min(step_bytes, nbytes - start), fd, start) for start in starts]
    before = resident_bytes()
    grown: list[int] = []
    with ReadAhead(steps, ahead_bytes=8 * MIB) as window:

        def read(steps_of_thread: range) -> None:
            for step in steps_of_thread:
                window.begin(step)
                assert values[starts[step] : starts[step] + step_bytes].max() == 0
                if drops:
                    window.done(step)
                grown.append(resident_bytes() - before)

        threads = [threading.Thread(target=read, args=(range(first, len(steps), 2),)) for first in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    os.close(fd)
    assert len(grown) == len(steps)
    return max(grown)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS counts inactive pages as resident")
def test_resident_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 512 * MIB)
    assert largest_growth(path, drops=True) < 64 * MIB
    assert largest_growth(path, drops=False) > 400 * MIB
