"""Storages: memory, mapped files from every kind of source, unaligned offsets, files that cannot be mapped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.errors import FileError, ShapeError, TruncatedError
from lbrx.settings import using
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.expr import Source
from lbrx.tensors.open_file import OpenFile
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import CpuStorage, MmapStorage
from support.strategies import assert_same, numpy_type, special_values, widened

NAMES = tuple(name for name in DTYPES if not DTYPES[name].is_packed)
VALUES = np.arange(1, 5, dtype=np.float32)


def tensor_over(storage: Any, name: str, shape: tuple[int, ...]) -> lbrx.Tensor:
    return lbrx.Tensor(Source(storage, dtype(name), Layout.contiguous(shape)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "weights.bin"
    place.write_bytes(b"abc" + VALUES.tobytes())
    return place


@pytest.fixture(params=["mapped", "read"])
def mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files that can be mapped, and files that can only be read piece by piece."""
    if request.param == "read":
        monkeypatch.setattr(system, "map_readonly", lambda *_: None)
    return str(request.param)


# -- sources --------------------------------------------------------------------------------------------------------


def test_memory_is_shared_not_copied() -> None:
    array = np.arange(6, dtype=np.float32)
    storage = CpuStorage.from_array(array)
    assert storage.nbytes == 24
    assert storage.address == array.ctypes.data
    array[1] = 9
    assert storage.read_at(4, 4).view(np.float32)[0] == 9
    buffer = np.zeros(8, np.uint8)
    storage.read_into(4, buffer)
    assert buffer.view(np.float32).tolist() == [9, 2]


def test_memory_that_is_not_contiguous_is_refused_by_storages_and_copied_by_tensors() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    with pytest.raises(ShapeError, match=r"shape \(3, 2\) with strides \(4, 12\) is not C-contiguous"):
        CpuStorage.from_array(array)
    assert_same(lbrx.tensor(array).numpy(), array)
    assert_same(lbrx.tensor(array.astype(">f4")).numpy(), array)


def test_a_path_as_text_or_object(path: Path, mapping: str) -> None:
    for source in (path, str(path)):
        storage = MmapStorage.from_file(source, offset=3)
        assert (storage.address is None) == (mapping == "read")
        assert storage.nbytes == 16
        assert storage.as_array("f32", (4,)).tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("mapping")
def test_an_open_file_and_a_descriptor_stay_usable_after_their_owner_closed_them(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(5)
        from_handle = MmapStorage.from_file(file, offset=3, length=8)
        from_descriptor = MmapStorage.from_file(file.fileno(), offset=7)
        assert file.tell() == 5
    assert from_handle.as_array("f32", (2,)).tolist() == [1, 2]
    assert from_descriptor.as_array("f32", (3,)).tolist() == [2, 3, 4]


@pytest.mark.usefixtures("mapping")
def test_a_pipe_is_spooled(path: Path) -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(path.read_bytes())

    writer = threading.Thread(target=write)
    writer.start()
    storage = MmapStorage.from_file(reading, offset=3)
    writer.join()
    os.close(reading)
    assert storage.as_array("f32", (4,)).tolist() == [1, 2, 3, 4]


def test_descriptors_are_not_leaked(path: Path) -> None:
    before = open_descriptors()
    mapped = [MmapStorage.from_file(path) for _ in range(3)]
    assert open_descriptors() == before  # a mapping needs none
    with path.open("rb") as file:
        given = MmapStorage.from_file(file)
    assert open_descriptors() == before + 1
    assert [storage.nbytes for storage in (*mapped, given)] == [19] * 4
    del given
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_mapped_file_is_opened_again_to_copy_many_bytes(tmp_path: Path) -> None:
    values = np.arange(1 << 20, dtype=np.uint8)
    file = tmp_path / "weights.bin"
    file.write_bytes(values.tobytes())
    storage = MmapStorage.from_file(file, offset=5)
    buffer = np.empty(storage.nbytes, np.uint8)
    for change in (lambda: None, lambda: file.rename(tmp_path / "moved"), lambda: file.write_bytes(b"another")):
        change()
        buffer[:] = 0
        storage.read_into(0, buffer)
        assert_same(buffer, values[5:])


def test_what_cannot_be_opened_is_named(tmp_path: Path, path: Path) -> None:
    with pytest.raises(FileError, match=r"missing\.bin"):
        MmapStorage.from_file(tmp_path / "missing.bin")
    with pytest.raises(FileError, match="directory"):
        MmapStorage.from_file(tmp_path)
    with pytest.raises(FileError, match=r"weights\.bin: cannot read bytes 10 to 30; the file has 19"):
        MmapStorage.from_file(path, offset=10, length=20)
    with pytest.raises(FileError, match=r"bytes 4 to 12 are outside a storage of 8 bytes"):
        MmapStorage.from_file(path, offset=3, length=8).read_at(4, 8)
    with pytest.raises(ShapeError, match="i4 elements share bytes and have no array view"):
        MmapStorage.from_file(path).as_array("i4", (2,))


@pytest.mark.usefixtures("mapping")
def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    storage = MmapStorage.from_file(tmp_path / "empty")
    assert storage.nbytes == 0
    assert_same((tensor_over(storage, "f32", (0, 3)) + 1).numpy(), np.zeros((0, 3), np.float32))


# -- alignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("mapping")
def test_any_offset_serves_for_any_dtype(name: str, tmp_path: Path) -> None:
    array = np.tile(special_values(name), 3)
    for offset in (1, 3, 7) if name in ("f32", "i64") else (3,):
        place = tmp_path / f"{offset}"
        place.write_bytes(b"\0" * offset + array.tobytes())
        storage = MmapStorage.from_file(place, offset=offset)
        assert_same(storage.as_array(name, array.shape), array)
        x = tensor_over(storage, name, array.shape)
        assert_same(x.numpy(), array)
        assert_same(x[::-1].numpy(), array[::-1])
        assert_same(x[4].numpy(), array[4])
        assert_same(x.to(x.dtype.compute).numpy(), widened(array))


def test_aligned_bytes_are_not_copied_and_cannot_be_written(path: Path) -> None:
    path.write_bytes(VALUES.tobytes())
    storage = MmapStorage.from_file(path)
    array = tensor_over(storage, "f32", (4,)).numpy()
    assert array.ctypes.data == storage.address
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


# -- layouts over files that are mapped and files that are read -----------------------------------------------------

ARRAY = np.random.default_rng(6).standard_normal((600, 257)).astype(np.float32)
PACKED = np.random.default_rng(7).integers(-8, 8, (600, 257)).astype(np.int8)
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "rows": lambda x: x[100:500],
    "columns": lambda x: x[:, 3:200],
    "steps": lambda x: x[::3, 1::2],
    "reversed": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T,
    "one row for all": lambda x: x[5:6] + x * 0,
    "one column for all": lambda x: x[:, 7:8] + x * 0,
    "vector with steps": lambda x: x[:, 9],
    "three axes": lambda x: x.reshape(20, 30, 257).transpose(1, 2, 0),
}


def array_of(view: Callable[[Any], Any], array: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(view(array))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("mapping")
def test_layouts_over_a_file(layout: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234567" + ARRAY.tobytes())
    x = tensor_over(MmapStorage.from_file(tmp_path / "file", offset=7), "f32", ARRAY.shape)
    view = LAYOUTS[layout]
    want = array_of(view, ARRAY)
    with using(threads=2, chunk_elements=1):
        assert_same((view(x) * 2).numpy(), want * 2)
        assert view(x).sum().item() == pytest.approx(want.astype(np.float64).sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("mapping")
def test_packed_layouts_over_a_file(layout: str, tmp_path: Path) -> None:
    packed = lbrx.tensor(PACKED, "i4")
    assert packed.storage is not None
    (tmp_path / "file").write_bytes(b"123" + packed.storage.read_at(0, packed.nbytes).tobytes())
    x = tensor_over(MmapStorage.from_file(tmp_path / "file", offset=3), "i4", PACKED.shape)
    view = LAYOUTS[layout]
    with using(threads=2, chunk_elements=1):
        assert_same(view(x).to("i8").numpy(), array_of(view, PACKED))


@pytest.mark.usefixtures("mapping")
def test_gathered_rows_and_row_reductions_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(ARRAY.tobytes())
    x = tensor_over(MmapStorage.from_file(tmp_path / "file"), "f32", ARRAY.shape)
    numbers = np.random.default_rng(8).integers(0, 600, 700)
    with using(threads=3, chunk_elements=1):
        assert_same((x.rows(numbers) * 2).numpy(), ARRAY[numbers] * 2)
        assert_same(x.rows(numbers).max(axis=-1).numpy(), ARRAY[numbers].max(-1))
        assert_same((x - x.max(axis=-1, keepdims=True)).numpy(), ARRAY - ARRAY.max(-1, keepdims=True))
        assert_same(x.kth_largest(500).numpy(), np.sort(ARRAY.reshape(-1))[-500])
        assert_same(lbrx.concatenate([x[:7], x * 2]).numpy(), np.concatenate([ARRAY[:7], ARRAY * 2]))
        assert_same(x.rank()[3].numpy(), np.argsort(np.argsort(ARRAY[3])))


# -- threads and truncation -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mapping")
def test_many_threads_read_one_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(ARRAY.tobytes())
    storage = MmapStorage.from_file(tmp_path / "file")
    x = tensor_over(storage, "f32", ARRAY.shape)

    def read(number: int) -> bool:
        buffer = np.empty(ARRAY.strides[0], np.uint8)
        storage.read_into(number * buffer.size, buffer)
        row = storage.read_at(number * buffer.size, buffer.size)
        total = (x[number] * 1).sum().item()
        want = ARRAY[number]
        return bool(
            buffer.tobytes() == row.tobytes() == want.tobytes()
            and total == pytest.approx(want.astype(np.float64).sum(), rel=1e-9, abs=1e-9)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(200)))


TRUNCATED = """
import os, sys
import numpy as np
import lbrx
from lbrx.base import system
from lbrx.tensors.dtype import dtype
from lbrx.errors import TruncatedError
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import MmapStorage

path, how = sys.argv[1:]
if how == "read":
    system.map_readonly = lambda *_: None
x = lbrx.Tensor(Source(MmapStorage.from_file(path), dtype("f32"), Layout.contiguous((1000, 1000))))
print(float((x + 1).sum()))
os.truncate(path, 40_000)
for wrong in (lambda: x.numpy(), lambda: (x * 2).numpy(), lambda: x.sum().item(), lambda: x[999, 999].item()):
    try:
        print("no error:", wrong())
    except TruncatedError as error:
        print("TruncatedError:", error)
"""


@pytest.mark.parametrize("how", ["mapped", "read"])
def test_a_file_that_became_shorter_is_an_error_and_not_the_end_of_the_process(
    how: str, device: str, tmp_path: Path
) -> None:
    place = tmp_path / "weights.bin"
    np.ones((1000, 1000), np.float32).tofile(place)
    command = [sys.executable, "-c", TRUNCATED, str(place), how]
    environment = os.environ | {"LBRX_DEVICE": device, "LBRX_METAL_DRIVER": "emulated"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "2000000.0"
    assert len(lines) == 5
    for line in lines[1:]:
        assert line.startswith("TruncatedError:")
        assert "weights.bin" in line


def test_a_window_beyond_a_file_is_refused_before_it_is_touched(path: Path) -> None:
    with pytest.raises(TruncatedError, match=r"cannot read bytes 10 to 40; the file has 19"):
        OpenFile(path).read_at(10, 30)


def test_a_file_may_grow_after_it_was_opened(path: Path) -> None:
    storage = MmapStorage.from_file(path, offset=3)
    with path.open("ab") as file:
        file.write(b"more")
    assert (tensor_over(storage, "f32", (4,)) * 2).numpy().tolist() == [2, 4, 6, 8]


def test_numpy_sees_bf16_of_a_file_as_ml_dtypes(tmp_path: Path) -> None:
    array = np.arange(5).astype(numpy_type("bf16"))
    (tmp_path / "file").write_bytes(array.tobytes())
    assert_same(tensor_over(MmapStorage.from_file(tmp_path / "file"), "bf16", (5,)).numpy(), array)
