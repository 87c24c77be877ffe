"""The window of resident pages: it does not keep files open, and its number of spans is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import lbrx
from lbrx.base.system import PinnedMapping, map_readonly
from lbrx.memory import resident
from lbrx.memory.resident import ResidentWindow


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_evaluations_over_opened_files_keep_no_descriptors(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.full((64, 64), 1.5, "f32")})

    def evaluate() -> float:
        return float(lbrx.open(tmp_path / "a.safetensors")["w"].sum())

    evaluate()
    before = open_descriptors()
    assert [evaluate() for _ in range(20)] == [64 * 64 * 1.5] * 20
    assert open_descriptors() <= before + 2


def test_spans_of_mappings_that_are_gone_do_not_accumulate(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(1 << 16))
    window = ResidentWindow()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mapping = map_readonly(descriptor, 0, 1 << 16)
        assert mapping is not None
        pinned = PinnedMapping(mapping)
        for start in range(resident._MAX_SPANS + 10):
            window.touched(pinned, start, 1)
    finally:
        os.close(descriptor)
    assert len(window._spans) == resident._MAX_SPANS * 3 // 4 + 9


def test_a_span_that_is_touched_again_keeps_its_whole_length(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(1 << 16))
    window = ResidentWindow()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mapping = map_readonly(descriptor, 0, 1 << 16)
        assert mapping is not None
        pinned = PinnedMapping(mapping)
        for length in (100, 40, 70):
            window.touched(pinned, 0, length)
    finally:
        os.close(descriptor)
    assert window._bytes == 100
    assert [length for _, length in window._spans.values()] == [100]


def test_a_full_window_drops_its_oldest_quarter_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(1 << 16))
    window = ResidentWindow(limit_bytes=800)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        mapping = map_readonly(descriptor, 0, 1 << 16)
        assert mapping is not None
        pinned = PinnedMapping(mapping)
        for start in range(0, 900, 100):
            window.touched(pinned, start, 100)
    finally:
        os.close(descriptor)
    assert [start for _, start in window._spans] == [300, 400, 500, 600, 700, 800]
    assert window._bytes == 600
