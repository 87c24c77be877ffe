"""Importance matrices in both formats of llama.cpp, whole and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FormatError, TensorNotFound
from lbrx.jobs.imatrix.files import read_imatrix


def legacy_entry(name: bytes, calls: int, values: list[float]) -> bytes:
    return struct.pack(f"<i{len(name)}sii{len(values)}f", len(name), name, calls, len(values), *values)


def legacy_file(path: Path, entries: list[bytes], tail: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries) + tail)
    return path


def test_legacy_file(tmp_path: Path) -> None:
    entries = [legacy_entry(b"a.weight", 4, [4.0, 8.0]), legacy_entry(b"b.weight", 0, [5.0])]
    tail = struct.pack("<ii8s", 17, 8, b"wiki.raw")
    matrix = read_imatrix(legacy_file(tmp_path / "imatrix.dat", entries, tail))
    assert list(matrix) == ["a.weight", "b.weight"]
    assert matrix["a.weight"].tolist() == [[1.0, 2.0]]
    assert matrix["b.weight"].tolist() == [[5.0]]
    assert (matrix.chunk_count, matrix.datasets) == (17, ("wiki.raw",))


def test_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    tensors = {
        "a.weight.in_sum2": lbrx.tensor(np.array([[2.0, 4.0], [9.0, 9.0]], np.float32)),
        "a.weight.counts": lbrx.tensor(np.array([[2.0], [0.0]], np.float32)),
    }
    lbrx.save(path, tensors, {"imatrix.datasets": ["x.txt"], "imatrix.chunk_count": 3})
    matrix = read_imatrix(path)
    assert matrix["a.weight"].tolist() == [[1.0, 2.0], [1.0, 1.0]]
    assert (matrix.chunk_count, matrix.datasets) == (3, ("x.txt",))


def test_importances_of_a_file_are_taken(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    importance = np.random.default_rng(1).random(256).astype(np.float32)
    entry = legacy_entry(b"w", 1, importance.tolist())
    matrix = read_imatrix(legacy_file(tmp_path / "imatrix.dat", [entry]))
    by_file = lbrx.tensor(values).quantize("q4_k", matrix["w"]).numpy()
    assert np.array_equal(by_file, lbrx.tensor(values).quantize("q4_k", importance).numpy())
    assert not np.array_equal(by_file, lbrx.tensor(values).quantize("q4_k").numpy())


def test_a_name_that_is_not_there_gets_a_hint(tmp_path: Path) -> None:
    matrix = read_imatrix(legacy_file(tmp_path / "m", [legacy_entry(b"blk.0.ffn_up.weight", 1, [1.0])]))
    with pytest.raises(TensorNotFound, match=r"did you mean 'blk.0.ffn_up.weight'"):
        matrix["blk.0.ffn_up"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the number of entries takes 4 bytes"),
        (struct.pack("<i", 0), "is not an importance matrix"),
        (struct.pack("<i", -1), "is not an importance matrix"),
        (struct.pack("<i", 1 << 30), "is not an importance matrix"),
        (struct.pack("<iiii", 1, -5, 0, 0), "a name takes -5 bytes"),
        (struct.pack("<iiii", 1, 1 << 30, 0, 0), "a name takes 1073741824 bytes"),
        (struct.pack("<ii1siii", 1, 1, b"w", 1, 0, 0), "'w' has 0 values"),
        (struct.pack("<ii1siii", 1, 1, b"w", 1, 1 << 29, 0), "values of 'w' takes 2147483648 bytes"),
        (struct.pack("<ii1siif", 1, 1, b"\xff", 1, 1, 0.0), "is not UTF-8"),
        (struct.pack("<i", 2) + 2 * legacy_entry(b"w", 1, [1.0]), "two entries of 'w'"),
    ],
)
def test_damaged_legacy_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "imatrix.dat"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        read_imatrix(path)


def test_gguf_files_that_are_no_importance_matrix_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    one = lbrx.tensor(np.ones(4, np.float32))
    lbrx.save(path, {"w": one})
    with pytest.raises(FormatError, match=r"has no tensor that ends in '.in_sum2'"):
        read_imatrix(path)
    lbrx.save(path, {"w.in_sum2": one})
    with pytest.raises(FormatError, match=r"but not 'w.counts'"):
        read_imatrix(path)
    lbrx.save(path, {"w.in_sum2": one, "w.counts": lbrx.tensor(np.ones(3, np.float32))})
    with pytest.raises(FormatError, match="expected f32 and one count for each matrix"):
        read_imatrix(path)
