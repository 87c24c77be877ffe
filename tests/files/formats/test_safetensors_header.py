"""SafeTensors headers against the reference library, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from safetensors import deserialize

from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.safetensors import BY_NAME, ELEMENT_TYPES, lay_out, tensor_nbytes
from lbrx.tensors.dtype import DTYPES
from support.layout_writing import random_data, write_layout
from support.malformed_bytes import read_safetensors, safetensors_file, tensor

REFERENCE_TYPES = ("f64", "f32", "f16", "i64", "i32", "i16", "i8", "u8", "bool")


def read_reference(content: bytes) -> dict[str, dict[str, Any]]:
    """The tensors of a file as the reference library sees them."""
    return dict(deserialize(content))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("type_name", BY_NAME)
def test_reference_reads_what_is_laid_out(type_name: str, tmp_path: Path) -> None:
    tensors = [
        TensorSpec("matrix", type_name, (3, 8)),
        TensorSpec("nothing", type_name, (0, 8)),
        TensorSpec("名前.weight", type_name, (8, 1, 2)),
    ]
    layout = lay_out("a.safetensors", tensors, {"format": "pt", "ключ": "значение"})
    data = random_data(layout)
    found = read_reference(write_layout(tmp_path, layout, data).read_bytes())
    assert found.keys() == data.keys()
    for spec in tensors:
        assert found[spec.name]["dtype"] == BY_NAME[spec.type_name].id
        assert tuple(found[spec.name]["shape"]) == spec.shape
        assert bytes(found[spec.name]["data"]) == data[spec.name]


@pytest.mark.parametrize("type_name", REFERENCE_TYPES)
def test_reads_what_the_reference_writes(type_name: str, tmp_path: Path) -> None:
    numpy_type = DTYPES[type_name].numpy
    values = {
        "matrix": np.arange(6).reshape(2, 3).astype(numpy_type),
        "scalar": np.array(1).astype(numpy_type),
        "nothing": np.zeros((3, 0), numpy_type),
        "imię": np.ones((1, 2, 1, 2), numpy_type),
    }
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(values, path, metadata={"format": "np", "a": "b"})
    header = read_safetensors(path)
    content = path.read_bytes()
    assert header.metadata == {"format": "np", "a": "b"}
    assert (header.file_bytes, header.byte_order, header.format) == (len(content), "little", "safetensors")
    assert {entry.name for entry in header.entries} == values.keys()
    for entry in header.entries:
        assert entry.dtype is DTYPES[type_name]
        assert entry.shape == values[entry.name].shape
        assert content[entry.offset : entry.end] == values[entry.name].tobytes()


def test_own_round_trip_of_all_types(tmp_path: Path) -> None:
    tensors = [TensorSpec(name, name, (4, 6)) for name in [*BY_NAME, "i4", "i2"]]
    layout = lay_out("a.safetensors", tensors, {"k": "v"})
    header = read_safetensors(write_layout(tmp_path, layout, random_data(layout)))
    assert header.metadata == {"k": "v"}
    assert [(entry.name, entry.offset, entry.nbytes) for entry in header.entries] == [
        (slot.name, slot.offset, slot.nbytes) for slot in layout.slots
    ]
    for entry in header.entries:
        assert entry.type_name == entry.name
        assert entry.dtype is DTYPES.get(entry.name)
        assert entry.shape == (4, 6)


def test_element_types_are_those_of_the_reference() -> None:
    for type_id, row in ELEMENT_TYPES.items():
        found = read_reference(safetensors_file({"w": tensor(type_id, [8], [0, row.bits])}, bytes(row.bits)))
        assert found["w"]["dtype"] == type_id


def test_layout_keeps_every_tensor_aligned() -> None:
    tensors = [TensorSpec("a", "i4", (3,)), TensorSpec("b", "bf16", (3,)), TensorSpec("c", "f64", (1,))]
    tensors += [TensorSpec("d", "u8", (5,)), TensorSpec("e", "f32", (3,)), TensorSpec("f", "bf16", (1,))]
    layout = lay_out("a.safetensors", tensors, {})
    assert [slot.name for slot in layout.slots] == ["c", "e", "b", "f", "a", "d"]
    assert len(layout.header) % 64 == 0
    assert layout.slots[0].offset == len(layout.header)
    for slot in layout.slots:
        assert slot.offset % DTYPES[slot.type_name].itemsize == 0
    assert layout.file_bytes == layout.slots[-1].offset + 5


def test_packed_types_travel_as_bytes(tmp_path: Path) -> None:
    layout = lay_out("a.safetensors", [TensorSpec("w", "i4", (3, 5)), TensorSpec("s", "i2", ())], {"format": "pt"})
    path = write_layout(tmp_path, layout, random_data(layout))
    found = read_reference(path.read_bytes())
    assert (found["w"]["dtype"], found["w"]["shape"]) == ("U8", [8])
    raw = path.read_bytes()
    metadata = json.loads(raw[8 : len(layout.header)])["__metadata__"]
    assert json.loads(metadata["lbrx.packed"])["w"] == {"dtype": "i4", "shape": [3, 5]}
    entries = {entry.name: entry for entry in read_safetensors(path).entries}
    assert (entries["w"].dtype, entries["w"].shape, entries["w"].nbytes) == (DTYPES["i4"], (3, 5), 8)
    assert (entries["s"].dtype, entries["s"].shape, entries["s"].nbytes) == (DTYPES["i2"], (), 1)


def test_half_types_are_read_back_by_ml_dtypes(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], ml_dtypes.bfloat16)
    layout = lay_out("a.safetensors", [TensorSpec("w", "bf16", (2, 2))], {})
    path = write_layout(tmp_path, layout, {"w": values.tobytes()})
    (entry,) = read_safetensors(path).entries
    assert entry.dtype is DTYPES["bf16"]
    read = np.frombuffer(path.read_bytes(), entry.dtype.numpy, offset=entry.offset).reshape(entry.shape)
    assert np.array_equal(read, values)


def test_entries_stand_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    header = {"c": tensor(offsets=[2, 4]), "z": tensor(shape=[0], offsets=[2, 2]), "a": tensor()}
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file(header, bytes(4)))
    assert [entry.name for entry in read_safetensors(path).entries] == ["a", "z", "c"]


def test_null_metadata_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file({"__metadata__": None, "w": {**tensor(), "note": "x"}}, b"12"))
    header = read_safetensors(path)
    assert header.metadata == {}
    assert [entry.name for entry in header.entries] == ["w"]


def test_no_tensors(tmp_path: Path) -> None:
    layout = lay_out("a.safetensors", [], {})
    path = write_layout(tmp_path, layout, {})
    assert read_reference(path.read_bytes()) == {}
    assert read_safetensors(path).entries == ()


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "message"),
    [
        ([TensorSpec("a", "f32", ()), TensorSpec("a", "u8", ())], {}, UsageError, "'a' is reserved or given twice"),
        ([TensorSpec("__metadata__", "f32", ())], {}, UsageError, "reserved"),
        ([TensorSpec("\udc80", "f32", ())], {}, UsageError, "is not text"),
        ([], {"a": 1}, UsageError, "expected strings only"),
        ([], {"lbrx.packed": "{}"}, UsageError, "'lbrx.packed' is reserved"),
        ([TensorSpec("a", "q4_k", (256,))], {}, DTypeError, "'q4_k' is not a SafeTensors type"),
        ([TensorSpec("a", "bf61", (256,))], {}, DTypeError, "did you mean 'bf16'"),
        ([TensorSpec("a", "f4", (3,))], {}, ShapeError, "takes 12 bits"),
        ([TensorSpec("a", "f32", (-1,))], {}, ShapeError, "negative size"),
        ([TensorSpec("a", "f32", (1,) * 65)], {}, ShapeError, "65 dimensions"),
    ],
)
def test_what_cannot_be_laid_out(
    tensors: list[TensorSpec], metadata: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lay_out("a.safetensors", tensors, metadata)


def test_tensor_nbytes_rounds_packed_types_up() -> None:
    assert [tensor_nbytes("i2", (elements,)) for elements in (0, 1, 4, 5)] == [0, 1, 1, 2]
