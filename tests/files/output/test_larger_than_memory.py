"""Tensors larger than the memory that a process may have. Files are sparse: they take no room on the disk."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.files.formats.header import TensorSpec
from support.little_memory import put, run_limited, sparse_model

GIB = 1 << 30

REDUCE = """
import sys, threading, time
import psutil
import lbrx
process = psutil.Process()
model = lbrx.open(sys.argv[1])
w = model["w"]
peak = 0
done = threading.Event()
def watch():
    global peak
    while not done.is_set():
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.01)
lbrx.evaluate(w[:1].sum(), w[:1].max(), w[:1].dot(w[:1]))
before = process.memory_info().rss
watcher = threading.Thread(target=watch)
watcher.start()
total, largest, squares = lbrx.evaluate(w.sum(), w.max(), w.dot(w))
done.set()
watcher.join()
print(float(total), float(largest), float(squares), peak - before)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="the system has no limit on private memory")
def test_a_reduction_over_20_gb_stays_flat_under_a_data_limit(tmp_path: Path) -> None:
    path = tmp_path / "huge.safetensors"
    rows, columns = 10 * GIB // 4096, 4096
    offset = sparse_model(path, [TensorSpec("w", "bf16", (rows, columns))])["w"]
    ones = lbrx.full((1000,), 1.5, "bf16").numpy()
    for place in (0, 7 * GIB, 20 * GIB - 2000):
        put(path, offset + place, ones)
    total, largest, squares, growth = map(float, run_limited(REDUCE, path).split())
    assert (total, largest, squares) == (3 * 1000 * 1.5, 1.5, 3 * 1000 * 2.25)
    assert growth < 400 << 20


WRITE = """
import sys
import lbrx
model = lbrx.open(sys.argv[1])
lbrx.save(sys.argv[2], {"w": (model["w"] * 2 + 1).to("f16")})
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="the system has no limit on private memory")
def test_three_gb_are_written_under_a_data_limit(tmp_path: Path) -> None:
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    elements = 3 * GIB // 2
    offset = sparse_model(source, [TensorSpec("w", "bf16", (elements,))])["w"]
    put(source, offset + 2 * GIB, lbrx.full((10,), 3.0, "bf16").numpy())
    run_limited(WRITE, source, target)
    written = lbrx.open(target)["w"]
    assert written.shape == (elements,)
    assert written[GIB - 1 : GIB + 11].numpy().tolist() == [1.0] + [7.0] * 10 + [1.0]
    assert float(written.sum()) == elements + 10 * 6


def test_a_view_into_a_mapped_tensor_over_1_gb_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    sparse_model(path, [TensorSpec("w", "f32", (300, 1 << 20))])
    w = lbrx.open(path)["w"]
    assert w.nbytes > 1 << 30
    row = w.T[5:9, 250].numpy()
    assert not row.flags.owndata
    assert row.tolist() == [0.0] * 4
    assert float((w - 1)[-1].sum()) == -(1 << 20)


def test_kth_largest_of_over_1_gb(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    elements = 600 << 20
    offset = sparse_model(path, [TensorSpec("w", "bf16", (elements,))])["w"]
    put(path, offset + 2 * (500 << 20), lbrx.tensor(np.arange(1, 101, dtype=np.float32)).to("bf16").numpy())
    w = lbrx.open(path)["w"]
    values = lbrx.evaluate(w.kth_largest(1), w.kth_largest(100), w.kth_largest(101))
    assert [float(value) for value in values] == [100.0, 1.0, 0.0]
    kept, first = lbrx.evaluate(w.top_k_mask(103).sum(), w.top_k_mask(103)[:5].sum())
    assert (int(kept), int(first)) == (103, 3)
