"""Mapped files that become shorter while they are read."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.base.system import missing_pages
from lbrx.errors import TruncatedError
from lbrx.ops.embedding import embedding
from lbrx.ops.linear import linear
from lbrx.tensors.open_file import OpenFile
from lbrx.tensors.storage import Bytes, MmapStorage, ReadStorage
from lbrx.tensors.tensor import Tensor

PAGE = system.page_bytes()
ROWS = COLUMNS = 256


class Truncating(ReadStorage):
    """Zeros; whoever reads them truncates a file."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path, self.nbytes = path, nbytes

    def read_into(self, offset: int, buffer: Bytes) -> None:  # noqa: ARG002 - a storage has it
        os.truncate(self._path, PAGE)
        buffer[:] = 0


def ones(path: Path) -> Path:
    np.ones((ROWS, COLUMNS), np.float32).tofile(path)
    return path


@system.guarded
def read_as_it_shrinks(path: Path, view: Bytes) -> None:
    os.truncate(path, PAGE)
    assert view[: PAGE // 2].any()
    assert not view[-100:].any()


def test_missing_pages_are_zeros_until_the_end_of_a_block(tmp_path: Path) -> None:
    path = ones(tmp_path / "weights")
    file = OpenFile(path)
    view = file.read_at(0, file.file_bytes)
    with pytest.raises(TruncatedError, match="weights: the file became shorter while it was read"):
        read_as_it_shrinks(path, view)
    os.truncate(path, file.file_bytes)  # as long as before, but the mapping has lost its pages
    with pytest.raises(TruncatedError, match="became shorter"):
        file.read_at(0, 1)


def test_blocks_are_independent_of_earlier_ones(tmp_path: Path) -> None:
    path = ones(tmp_path / "weights")
    file = OpenFile(path)
    with pytest.raises(TruncatedError):
        read_as_it_shrinks(path, file.read_at(0, file.file_bytes))
    with system.guarded_reads():
        assert OpenFile(path).read_at(0, PAGE).any()


def test_an_error_in_a_block_is_kept(tmp_path: Path) -> None:
    path = ones(tmp_path / "weights")
    file = OpenFile(path)
    view = file.read_at(0, file.file_bytes)

    @system.guarded
    def fail() -> float:
        os.truncate(path, PAGE)
        return 1 / int(view.min())

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("threads", [1, 3])
def test_evaluations_raise_if_a_file_becomes_shorter_after_its_check(tmp_path: Path, threads: int) -> None:
    path = ones(tmp_path / "weights")
    tensor = lbrx.mmap_tensor(path, (ROWS, COLUMNS), "f32")
    other = Tensor.from_storage(Truncating(path, ROWS * COLUMNS * 4), "f32", (ROWS, COLUMNS))
    with lbrx.using(threads=threads), pytest.raises(TruncatedError):
        (other + tensor).numpy()


def test_a_save_raises_and_leaves_no_output(tmp_path: Path) -> None:
    path = ones(tmp_path / "weights")
    tensor = lbrx.mmap_tensor(path, (ROWS, COLUMNS), "f32")
    other = Tensor.from_storage(Truncating(path, ROWS * COLUMNS * 4), "f32", (ROWS, COLUMNS))
    with pytest.raises(TruncatedError):
        lbrx.save(tmp_path / "out.safetensors", {"a": other + tensor})
    assert not (tmp_path / "out.safetensors").exists()


def test_operations_raise_if_the_weight_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ones(tmp_path / "weights")
    check = OpenFile.check_unchanged

    def check_too_early(file: OpenFile) -> None:
        check(file)
        os.truncate(path, PAGE)

    monkeypatch.setattr(OpenFile, "check_unchanged", check_too_early)
    for operation in (
        lambda weight: linear(np.ones((1, COLUMNS), np.float32), weight),
        lambda weight: embedding([ROWS - 1], weight),
        lambda weight: weight.sum().item(),
    ):
        weight = lbrx.mmap_tensor(ones(path), (ROWS, COLUMNS), "f32")
        with pytest.raises(TruncatedError):
            operation(weight)


READ_A_VIEW = """
import os, sys, lbrx
view = lbrx.mmap_tensor(sys.argv[1], (256, 256), "f32").numpy()
os.truncate(sys.argv[1], 4096)
print(view.sum())
"""


def test_other_reads_end_the_process_as_before(tmp_path: Path) -> None:
    """Zeros without an error would be worse."""
    command = [sys.executable, "-c", READ_A_VIEW, str(ones(tmp_path / "weights"))]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGBUS
    assert process.stdout == ""


def test_mappings_are_forgotten(tmp_path: Path) -> None:
    path = ones(tmp_path / "weights")
    gc.collect()  # mappings of other tests
    before = len(missing_pages._mapped)
    storages = [MmapStorage.from_file(path) for _ in range(20)]
    assert len(missing_pages._mapped) == before + 20
    storages.clear()
    assert len(missing_pages._mapped) == before
