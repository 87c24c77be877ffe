"""GGUF headers against gguf-py, both ways and in both byte orders."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest

from lbrx.errors import DTypeError, ShapeError, UsageError
from lbrx.files.formats.gguf import lay_out
from lbrx.files.formats.gguf_types import BY_ID, GGML_TYPES, REMOVED_TYPES
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.formats.header import TensorSpec
from lbrx.tensors.dtype import DTYPES
from support.layout_writing import random_data, write_layout
from support.malformed_bytes import gguf_file, info, pair, read_gguf

NEWER_THAN_REFERENCE = {"q2_0"}
SCALARS = {
    "u8": 200,
    "i8": -100,
    "u16": 60000,
    "i16": -30000,
    "u32": 4_000_000_000,
    "i32": -2_000_000_000,
    "f32": 0.15625,
    "bool": True,
    "u64": 2**63 + 5,
    "i64": -(2**62),
    "f64": 0.1,
    "str": "naïve 文字",
}


def reference_type(name: str) -> reference.GGUFValueType:
    return {
        "u8": reference.GGUFValueType.UINT8,
        "i8": reference.GGUFValueType.INT8,
        "u16": reference.GGUFValueType.UINT16,
        "i16": reference.GGUFValueType.INT16,
        "u32": reference.GGUFValueType.UINT32,
        "i32": reference.GGUFValueType.INT32,
        "f32": reference.GGUFValueType.FLOAT32,
        "bool": reference.GGUFValueType.BOOL,
        "u64": reference.GGUFValueType.UINT64,
        "i64": reference.GGUFValueType.INT64,
        "f64": reference.GGUFValueType.FLOAT64,
        "str": reference.GGUFValueType.STRING,
    }[name]


def write_reference(path: Path, big_endian: bool, alignment: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """A file with all value types and several tensor types, written by gguf-py; its unquantized tensors."""
    endian = reference.GGUFEndian.BIG if big_endian else reference.GGUFEndian.LITTLE
    writer = reference.GGUFWriter(path, "llama", endianess=endian)
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, value in SCALARS.items():
        writer.add_key_value(f"scalar.{name}", value, reference_type(name))
        writer.add_key_value(f"array.{name}", [value] * 3, reference.GGUFValueType.ARRAY, sub_type=reference_type(name))
    generator = np.random.default_rng(1)
    tensors = {
        name: (100 * generator.standard_normal((2, 3, 4))).astype(DTYPES[name].numpy)
        for name in ("f64", "f32", "f16", "i64", "i32", "i16", "i8")
    }
    tensors["ключ"] = np.arange(7, dtype=np.float32)
    tensors["nothing"] = np.zeros((0, 4), np.float32)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    blocks = generator.integers(0, 2, (3, 288), np.uint8)
    writer.add_tensor("quantized", blocks, raw_dtype=reference.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("alignment", [None, 8, 4096])
def test_reads_what_the_reference_writes(big_endian: bool, alignment: int | None, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    tensors = write_reference(path, big_endian, alignment)
    header = read_gguf(path)
    content = path.read_bytes()
    order = ">" if big_endian else "<"
    assert header.byte_order == ("big" if big_endian else "little")
    assert [entry.name for entry in header.entries] == [*tensors, "quantized"]
    for entry in header.entries[:-1]:
        expected = tensors[entry.name]
        assert entry.shape == expected.shape
        assert entry.dtype is not None
        found = np.frombuffer(content[entry.offset : entry.end], expected.dtype.newbyteorder(order))
        assert np.array_equal(found.reshape(entry.shape), expected)
        assert entry.offset % (alignment or 32) == 0
    quantized = header.entries[-1]
    assert (quantized.type_name, quantized.dtype, quantized.shape, quantized.nbytes) == ("q4_k", None, (3, 512), 864)
    for name, value in SCALARS.items():
        assert header.metadata[f"scalar.{name}"] == value
        assert type(header.metadata[f"scalar.{name}"]) is type(value)
        assert list(header.metadata[f"array.{name}"]) == [value] * 3
    assert header.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize("type_name", sorted(GGML_TYPES.keys() - NEWER_THAN_REFERENCE - {"q8_1"}))
def test_reference_reads_what_is_laid_out(type_name: str, tmp_path: Path) -> None:
    tensors = [
        TensorSpec("matrix", type_name, (3, 512)),
        TensorSpec("nothing", type_name, (0, 256)),
        TensorSpec("名.weight", type_name, (2, 1, 1, 256)),
    ]
    layout = lay_out("a.gguf", tensors, {"general.architecture": "llama"}, alignment=64)
    data = random_data(layout)
    found = reference.GGUFReader(write_layout(tmp_path, layout, data))
    assert [tensor.name for tensor in found.tensors] == [spec.name for spec in tensors]
    for tensor, spec, slot in zip(found.tensors, tensors, layout.slots, strict=True):
        assert tensor.tensor_type.name.lower() == type_name
        assert tuple(reversed(tensor.shape.tolist())) == spec.shape
        assert (tensor.data_offset, tensor.n_bytes) == (slot.offset, slot.nbytes)
        assert tensor.data.tobytes() == data[spec.name]


def test_reference_reads_all_value_types(tmp_path: Path) -> None:
    metadata = {f"scalar.{name}": Typed(value, name) for name, value in SCALARS.items()}
    metadata |= {f"array.{name}": Typed([value] * 3, f"array[{name}]") for name, value in SCALARS.items()}
    layout = lay_out("a.gguf", [TensorSpec("w", "f32", (2,))], metadata)
    found = reference.GGUFReader(write_layout(tmp_path, layout, random_data(layout)))
    for name, value in SCALARS.items():
        scalar, array = found.get_field(f"scalar.{name}"), found.get_field(f"array.{name}")
        assert scalar is not None
        assert array is not None
        assert scalar.types == [reference_type(name)]
        assert array.types == [reference.GGUFValueType.ARRAY, reference_type(name)]
        assert scalar.contents() == value
        assert array.contents() == [value] * 3


@pytest.mark.parametrize("big_endian", [False, True])
def test_metadata_is_written_back_with_the_same_types(big_endian: bool, tmp_path: Path) -> None:
    write_reference(tmp_path / "a.gguf", big_endian)
    header = read_gguf(tmp_path / "a.gguf")
    layout = lay_out("b.gguf", [], header.metadata)
    again = read_gguf(write_layout(tmp_path, layout, {}))
    assert again.metadata == header.metadata
    assert list(again.metadata) == list(header.metadata)
    for key in header.metadata:
        kind, _, name = key.partition(".")
        if kind in ("scalar", "array"):
            assert header.metadata.type_of(key) == (name if kind == "scalar" else f"array[{name}]")  # type: ignore[attr-defined]


def test_header_of_the_reference_is_reproduced_byte_for_byte(tmp_path: Path) -> None:
    write_reference(tmp_path / "a.gguf", big_endian=False)
    header = read_gguf(tmp_path / "a.gguf")
    tensors = [TensorSpec(entry.name, entry.type_name, entry.shape) for entry in header.entries]
    layout = lay_out("b.gguf", tensors, header.metadata)
    content = (tmp_path / "a.gguf").read_bytes()
    assert layout.header == content[: len(layout.header)]
    assert [slot.offset for slot in layout.slots] == [entry.offset for entry in header.entries]
    assert layout.file_bytes == len(content)


def test_own_round_trip_of_all_types(tmp_path: Path) -> None:
    tensors = [TensorSpec(name, name, (2, 256)) for name in GGML_TYPES] + [TensorSpec("scalar", "f32", ())]
    layout = lay_out("a.gguf", tensors, {})
    header = read_gguf(write_layout(tmp_path, layout, random_data(layout)))
    for entry, spec, slot in zip(header.entries, tensors, layout.slots, strict=True):
        assert (entry.name, entry.type_name, entry.shape) == (spec.name, spec.type_name, spec.shape)
        assert (entry.offset, entry.nbytes) == (slot.offset, slot.nbytes)
        assert entry.dtype is DTYPES.get(spec.type_name)


def test_types_are_those_of_the_reference() -> None:
    for kind, sizes in reference.GGML_QUANT_SIZES.items():
        row = BY_ID[kind.value]
        # gguf-py counts 40 bytes for q8_1; the struct of ggml has two halves and 32 bytes, which is 36
        expected = (32, 36) if row.name == "q8_1" else sizes
        assert (row.name, (row.block_elements, row.block_bytes)) == (kind.name.lower(), expected)
    known = {kind.value for kind in reference.GGMLQuantizationType}
    assert {row.name for row in BY_ID.values() if row.id not in known} <= NEWER_THAN_REFERENCE
    assert not BY_ID.keys() & REMOVED_TYPES.keys()


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_file((pair("k", 0, b"\7"),), (info(),), version=2))
    header = read_gguf(path)
    assert header.metadata["k"] == 7
    assert [entry.name for entry in header.entries] == ["w"]


def test_last_padding_may_be_missing_or_longer(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for data in (bytes(2), bytes(32), bytes(100)):
        path.write_bytes(gguf_file(infos=(info(),), data=data))
        assert read_gguf(path).entries[0].nbytes == 2


def test_header_larger_than_the_first_read(tmp_path: Path) -> None:
    tokens = [f"token {index} " + "é" * (index % 50) for index in range(60_000)]
    numbers = np.arange(600_000, dtype=np.int32)
    metadata = {"tokenizer.ggml.tokens": tokens, "numbers": numbers, "text": "x" * 3_000_000}
    layout = lay_out("a.gguf", [TensorSpec("w", "i8", (5,))], metadata)
    assert len(layout.header) > 8 << 20
    header = read_gguf(write_layout(tmp_path, layout, {"w": b"12345"}))
    assert header.metadata["tokenizer.ggml.tokens"] == tokens
    assert np.array_equal(header.metadata["numbers"], numbers)
    assert header.metadata["text"] == metadata["text"]
    assert header.entries[0].offset == layout.slots[0].offset


def test_alignment_given_wins_over_metadata(tmp_path: Path) -> None:
    tensors = [TensorSpec("a", "i8", (3,)), TensorSpec("b", "i8", (3,))]
    layout = lay_out("a.gguf", tensors, {"general.alignment": 4096}, alignment=128)
    header = read_gguf(write_layout(tmp_path, layout, random_data(layout)))
    assert header.metadata["general.alignment"] == 128
    assert header.entries[1].offset - header.entries[0].offset == 128
    assert layout.file_bytes % 128 == 0
    assert "general.alignment" not in read_gguf(write_layout(tmp_path, lay_out("b.gguf", [], {}), {})).metadata


@pytest.mark.parametrize(
    ("tensors", "metadata", "alignment", "error", "message"),
    [
        ([TensorSpec("a", "i8", ()), TensorSpec("a", "i8", ())], {}, 32, UsageError, "'a'.*given once"),
        ([TensorSpec("n" * 64, "i8", ())], {}, 32, UsageError, "1 to 63 bytes"),
        ([TensorSpec("é" * 32, "i8", ())], {}, 32, UsageError, "1 to 63 bytes"),
        ([TensorSpec("", "i8", ())], {}, 32, UsageError, "1 to 63 bytes"),
        ([TensorSpec("a\0", "i8", ())], {}, 32, UsageError, "without NUL"),
        ([TensorSpec("a", "f8_e4m3", ())], {}, 32, DTypeError, "'a': 'f8_e4m3' is not a GGUF tensor type"),
        ([TensorSpec("a", "q4_K", (256,))], {}, 32, DTypeError, "did you mean 'q4_k'"),
        ([TensorSpec("a", "q4_k", (128,))], {}, 32, ShapeError, "multiple of 256 for q4_k"),
        ([TensorSpec("a", "i8", (1, 1, 1, 1, 1))], {}, 32, ShapeError, "5 dimensions"),
        ([TensorSpec("a", "i8", (-1,))], {}, 32, ShapeError, "negative size"),
        ([TensorSpec(name, "i8", (2**62,)) for name in "abc"], {}, 32, ShapeError, "the file would exceed"),
        ([], {}, 24, UsageError, "alignment 24, expected a power of two"),
        ([], {}, 0, UsageError, "alignment 0"),
        ([], {"general.architecture": 1}, 32, UsageError, "'general.architecture' is given as u32, expected str"),
    ],
)
def test_what_cannot_be_laid_out(
    tensors: list[TensorSpec], metadata: dict[str, Any], alignment: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lay_out("a.gguf", tensors, metadata, alignment)


def test_big_endian_arrays_are_native_in_memory(tmp_path: Path) -> None:
    raw = b"GGUF" + struct.pack(">Iqq", 3, 0, 1) + struct.pack(">Q1sIIQHH", 1, b"k", 9, 2, 2, 1, 513)
    (tmp_path / "a.gguf").write_bytes(raw)
    found = read_gguf(tmp_path / "a.gguf").metadata["k"]
    assert found.dtype == np.dtype(np.uint16)
    assert found.tolist() == [1, 513]
    assert not found.flags.writeable
