"""Products on our own threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lbrx
from lbrx.lora import blas
from lbrx.lora.blas import in_pieces, one_blas_thread


def is_openblas() -> bool:
    config = np.show_config(mode="dicts")
    assert isinstance(config, dict)
    return "openblas" in config["Build Dependencies"]["blas"]["name"]


@pytest.mark.skipif(not is_openblas(), reason="NumPy is not built with OpenBLAS")
def test_openblas_gets_one_thread_and_its_own_back() -> None:
    control = blas._thread_control()
    assert control is not None
    before = control.get()
    control.set(2)
    try:
        with one_blas_thread():
            assert control.get() == 1
            with one_blas_thread():
                assert control.get() == 1
            assert control.get() == 1
        assert control.get() == 2
    finally:
        control.set(before)


def test_any_other_blas_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_thread_control", lambda: None)
    with one_blas_thread():
        np.testing.assert_array_equal(np.eye(2) @ np.eye(2), np.eye(2))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("size", "piece"), [(10, 3), (9, 3), (2, 3), (0, 3)])
def test_pieces_cover_the_range_once(threads: int, size: int, piece: int) -> None:
    counts, lock = np.zeros(size, np.int64), threading.Lock()

    def work(first: int, stop: int) -> None:
        assert first % piece == 0
        with lock:
            counts[first:stop] += 1

    with lbrx.using(threads=threads):
        in_pieces(size, piece, work)
    np.testing.assert_array_equal(counts, 1)
