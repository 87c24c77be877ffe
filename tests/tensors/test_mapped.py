"""Tensors over files without a header: every kind of source, dtype and offset, and what is refused."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.base import system
from lbrx.errors import DTypeError, FileError, ShapeError, UsageError

VALUES = np.arange(2000, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    VALUES.tofile(tmp_path / "weights.bin")
    return tmp_path / "weights.bin"


@pytest.fixture(params=["mapped", "read"])
def mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "read":
        monkeypatch.setattr(system, "map_readonly", lambda *_: None)
    return str(request.param)


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"read_ahead": True},
        {"populate": True},
        {"access": "sequential"},
        {"access": "random", "populate": True, "read_ahead": True},
    ],
)
def test_options_do_not_change_values(path: Path, options: Any) -> None:
    tensor = lbrx.mmap_tensor(path, (20, 50), "f32", offset=4000, options=lbrx.MmapOptions(**options))
    assert (tensor.shape, tensor.dtype, tensor.device) == ((20, 50), "f32", "cpu")
    assert np.array_equal(tensor.numpy(), VALUES[1000:].reshape(20, 50))
    assert float(tensor.sum()) == VALUES[1000:].sum()


def test_a_file_and_a_descriptor(path: Path) -> None:
    with path.open("rb") as file:
        tensors = [lbrx.mmap_tensor(source, 3, "f32", 8) for source in (file, file.fileno(), str(path))]
    assert [tensor.tolist() for tensor in tensors] == [[2.0, 3.0, 4.0]] * 3


def test_bytes_that_a_file_object_has_buffered_are_mapped_too(tmp_path: Path) -> None:
    with (tmp_path / "new").open("w+b") as file:
        file.write(b"\x01\x02\x03")
        assert lbrx.mmap_tensor(file, 3, "u8").tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["bf16", "i4", "i2", "i64", "bool", "f8_e4m3"])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_every_dtype_at_any_offset(tmp_path: Path, name: str, offset: int) -> None:
    values = np.arange(-16, 16).reshape(4, 8) % 4 - (2 if name in ("i4", "i2") else 0)
    stored = lbrx.tensor(values, name)
    (tmp_path / "raw").write_bytes(b"x" * offset + bytes(stored.raw().numpy()))
    mapped = lbrx.mmap_tensor(tmp_path / "raw", (4, 8), name, offset)
    assert mapped.dtype == name
    assert np.array_equal(mapped.numpy(), stored.numpy())
    assert (mapped.to("f32") * 2).tolist() == (stored.to("f32") * 2).tolist()


def test_blocks_of_a_quantization(tmp_path: Path) -> None:
    coded = lbrx.tensor(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)).quantize("q4_0")
    (tmp_path / "raw").write_bytes(b"head" + bytes(coded.raw().numpy()))
    mapped = lbrx.mmap_tensor(tmp_path / "raw", (2, 64), "q4_0", 4)
    assert (mapped.type_name, mapped.nbytes) == ("q4_0", 72)
    assert mapped.quantization is not None
    assert mapped.quantization.bits == 4.5
    assert np.array_equal(mapped.numpy(), coded.numpy())


def test_a_short_file_is_an_error_with_both_sizes(path: Path) -> None:
    message = r"weights\.bin: a tensor of f32 and shape \(40, 50\) needs 8000 bytes from byte 4, but the file has 8000"
    with pytest.raises(FileError, match=message):
        lbrx.mmap_tensor(path, (40, 50), "f32", offset=4)
    with pytest.raises(FileError, match="needs 4 bytes from byte -4, but the file has 8000"):
        lbrx.mmap_tensor(path, (1,), "f32", offset=-4)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (io.BytesIO(b"abcd"), "an object of type BytesIO, which is not a file; expected a path, an open binary file"),
        (object(), "an object of type object, which is not a file"),
        (b"path", "an object of type bytes, which is not a file"),
        (None, "an object of type NoneType, which is not a file"),
        (True, "an object of type bool, which is not a file"),
        (-1, "descriptor -1; expected at least 0"),
    ],
)
def test_objects_that_are_not_files(source: Any, message: str) -> None:
    for call in (lambda: lbrx.mmap_tensor(source, 1, "u8"), lambda: lbrx.MmapStorage.from_file(source)):
        with pytest.raises(UsageError, match=message):
            call()


def test_files_that_cannot_be_read(path: Path, tmp_path: Path) -> None:
    with path.open("rb") as file:
        closed = os.dup(file.fileno())
    os.close(closed)
    with pytest.raises(UsageError, match="a file that is closed"):
        lbrx.mmap_tensor(file, 1, "u8")
    with pytest.raises(FileError, match="cannot use this descriptor: bad file descriptor"):
        lbrx.mmap_tensor(closed, 1, "u8")
    with (tmp_path / "out").open("wb") as file, pytest.raises(FileError, match="out: is open for writing only"):
        lbrx.mmap_tensor(file, 1, "u8")
    with pytest.raises(FileError, match=r"weights\.bin: offset 9000 is past the end; the file has 8000 bytes"):
        lbrx.MmapStorage.from_file(path, offset=9000)


def test_wrong_arguments(path: Path) -> None:
    with pytest.raises(ShapeError, match="shape 'f32' does not consist of whole numbers"):
        lbrx.mmap_tensor(path, "f32", (2, 3))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="unknown dtype 'float33'"):
        lbrx.mmap_tensor(path, 2, "float33")
    with pytest.raises(UsageError, match="unknown access 'rand'; expected one of normal, sequential, random"):
        lbrx.MmapOptions(access="rand")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"offset": 1.5}, UsageError, r"the offset is 1\.5; expected a whole number"),
        ({"dtype": (4,)}, DTypeError, r"\(4,\) is not a dtype"),
        ({"options": {"populate": True}}, UsageError, r"options is \{'populate': True\}; expected MmapOptions"),
        ({"shape": (2.0,)}, ShapeError, "does not consist of whole numbers"),
        ({"shape": (-2,)}, ShapeError, "has a negative size"),
    ],
)
def test_arguments_of_wrong_types(path: Path, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lbrx.mmap_tensor(**{"path": path, "shape": (2,), "dtype": "f32"} | arguments)


def test_nothing_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    options = lbrx.MmapOptions(populate=True, read_ahead=True, access="random")
    assert lbrx.mmap_tensor(tmp_path / "empty", (0, 3), "f32", options=options).numpy().shape == (0, 3)
    with pytest.raises(FileError, match="needs 1 bytes from byte 0, but the file has 0"):
        lbrx.mmap_tensor(tmp_path / "empty", (), "u8")


def test_storages_describe_themselves(path: Path) -> None:
    mapped = lbrx.MmapStorage.from_file(path, offset=4)
    assert repr(mapped) == f"MmapStorage('{path}', offset=4, 7.8 KiB)"
    assert repr(lbrx.CpuStorage.from_array(VALUES)) == "CpuStorage(7.8 KiB)"


def test_numpy_dtypes_are_accepted(path: Path) -> None:
    assert lbrx.mmap_tensor(path, (2,), np.float32, 4).tolist() == [1.0, 2.0]
    assert lbrx.mmap_tensor(path, (2,), ml_dtypes.bfloat16).dtype == "bf16"
