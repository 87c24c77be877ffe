"""The pool of scratch buffers that all passes share."""

from __future__ import annotations

import threading

import pytest

from lbrx.memory import scratch
from lbrx.memory.arena import MemoryArena


def test_threads_that_ask_first_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas: list[MemoryArena] = []
    made = threading.Event()

    def slow_arena(**_: object) -> MemoryArena:
        made.wait(0.05)  # long enough for the others to come
        return MemoryArena()

    monkeypatch.setattr(scratch, "_arena", None)
    monkeypatch.setattr(scratch, "MemoryArena", slow_arena)
    threads = [threading.Thread(target=lambda: arenas.append(scratch.scratch_arena())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(arenas) == 4
    assert len({id(arena) for arena in arenas}) == 1
