"""Types and values of GGUF metadata."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lbrx.errors import UsageError
from lbrx.files.formats.gguf import lay_out
from lbrx.files.formats.gguf_encode import encode_pair, infer_type, typed_metadata
from lbrx.files.formats.gguf_values import GgufMetadata, StringArray, Typed
from support.layout_writing import write_layout
from support.malformed_bytes import array, gguf_file, pair, read_gguf, string


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (0, "u32"),
        (2**32 - 1, "u32"),
        (2**32, "u64"),
        (2**64 - 1, "u64"),
        (-1, "i32"),
        (-(2**31), "i32"),
        (-(2**31) - 1, "i64"),
        (True, "bool"),
        (1.0, "f32"),
        ("", "str"),
        ([1, 2], "array[i32]"),
        ([1, 2**32 - 1], "array[u32]"),
        ([-1, 2**32 - 1], "array[i64]"),
        ([0, 2**64 - 1], "array[u64]"),
        ([1, 0.5], "array[f32]"),
        ([True, False], "array[bool]"),
        (("a", "b"), "array[str]"),
        (np.float64(1), "f64"),
        (np.int8(-1), "i8"),
        (np.bool_(1), "bool"),
        (np.zeros(3, np.uint16), "array[u16]"),
        (np.zeros(3, ">f8"), "array[f64]"),
        (StringArray.of(["a"]), "array[str]"),
    ],
)
def test_inferred_types(value: Any, type_name: str, tmp_path: Path) -> None:
    assert infer_type("k", value).type == type_name
    read = read_gguf(write_layout(tmp_path, lay_out("a.gguf", [], {"k": value}), {})).metadata
    assert isinstance(read, GgufMetadata)
    assert read.type_of("k") == type_name
    assert list(read["k"]) == list(value) if type_name.startswith("array") else read["k"] == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "has no GGUF type"),
        ({}, "has no GGUF type"),
        (b"a", "has no GGUF type"),
        ([], "an empty list has no element type"),
        ([1, "a"], "expected all bool, numbers or strings"),
        ([[1], [2]], "expected all bool, numbers or strings"),
        ([True, 2], "expected all bool, numbers or strings"),
        (2**64, "does not fit into a 64-bit integer"),
        ([-1, 2**63], "does not fit into a 64-bit integer"),
        (np.zeros((2, 2)), "of 2 dimensions"),
        (np.float16(1), "NumPy float16"),
        (Typed(256, "u8"), "cannot be written as u8"),
        (Typed(1.5, "u32"), "cannot be written as u32"),
        (Typed(1e300, "f32"), "cannot be written as f32"),
        (Typed(1, "bool"), "expected True or False"),
        (Typed(1, "str"), "cannot be written as str"),
        (Typed([1, 300], "array[u8]"), r"cannot be written as array\[u8\]"),
        (Typed([1, 0], "array[bool]"), "expected True or False"),
        (Typed([1], "array[str]"), r"cannot be written as array\[str\]"),
        (Typed(np.zeros((2, 2), np.float32), "array[f32]"), r"cannot be written as array\[f32\]"),
        (Typed(3, "array[u8]"), r"cannot be written as array\[u8\]"),
    ],
)
def test_values_that_cannot_be_written(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        lay_out("a.gguf", [], {"the.key": value})
    assert "'the.key'" in str(caught.value)


@pytest.mark.parametrize("type_name", ["u128", "array", "array[array[u8]]", "array[]", "U32", ""])
def test_unknown_types(type_name: str) -> None:
    with pytest.raises(UsageError, match="is not a GGUF value type"):
        Typed(1, type_name)


@pytest.mark.parametrize("key", ["", "k" * 65536])
def test_keys_that_cannot_be_written(key: str) -> None:
    with pytest.raises(UsageError, match="expected 1 to 65535"):
        encode_pair(key, Typed(1, "u8"))


def test_typed_arrays_take_any_sequence_of_fitting_numbers(tmp_path: Path) -> None:
    metadata = {
        "wide": Typed(np.arange(3, dtype=np.int64), "array[u8]"),
        "list": Typed([1, 2], "array[f64]"),
        "none": Typed([], "array[str]"),
        "zero": Typed(np.zeros(0, np.float32), "array[f32]"),
    }
    read = read_gguf(write_layout(tmp_path, lay_out("a.gguf", [], metadata), {})).metadata
    assert isinstance(read, GgufMetadata)
    assert {key: (read.type_of(key), list(read[key])) for key in read} == {
        "wide": ("array[u8]", [0, 1, 2]),
        "list": ("array[f64]", [1.0, 2.0]),
        "none": ("array[str]", []),
        "zero": ("array[f32]", []),
    }


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    strings = string(b"\xff\xfe") + string(b"ok")
    content = gguf_file((pair("one", 8, string(b"a\xe9")), pair("many", 9, array(8, 2, strings))), data=b"")
    (tmp_path / "a.gguf").write_bytes(content)
    metadata = read_gguf(tmp_path / "a.gguf").metadata
    assert metadata["one"] == "a\udce9"
    assert metadata["many"][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert lay_out("b.gguf", [], metadata).header == content
    rebuilt = {"one": metadata["one"], "many": list(metadata["many"])}
    assert lay_out("b.gguf", [], rebuilt).header == content


def test_string_array_is_a_sequence() -> None:
    words = ["", "a", "жук", "🦀", "a"]
    strings = StringArray.of(words)
    assert list(strings) == words
    assert [strings[index] for index in range(-5, 5)] == words + words
    assert strings[1:4:2] == ["a", "🦀"]
    assert strings[::-1] == words[::-1]
    assert strings == words
    assert strings != words[:-1]
    assert strings != "abc"
    assert "жук" in strings
    assert strings.index("🦀") == 3
    assert "5 strings" in repr(strings)
    assert len(StringArray.of([])) == 0
    with pytest.raises(IndexError):
        strings[5]


def test_metadata_is_a_mapping_with_types() -> None:
    metadata = GgufMetadata({"a": Typed(1, "u8"), "b": Typed(np.arange(2), "array[i64]")})
    assert dict(metadata).keys() == {"a", "b"}
    assert (len(metadata), metadata["a"], metadata.type_of("a")) == (2, 1, "u8")
    assert metadata.get("c") is None
    with pytest.raises(KeyError):
        metadata.type_of("c")
    edited = {**metadata.typed(), "a": 5}
    assert {key: typed.type for key, typed in typed_metadata(edited).items()} == {"a": "u32", "b": "array[i64]"}


def test_metadata_equality_looks_at_types_and_values() -> None:
    one = GgufMetadata({"a": Typed(1, "u8"), "b": Typed(np.arange(2), "array[i64]")})
    assert one == GgufMetadata({"b": Typed(np.arange(2), "array[i64]"), "a": Typed(1, "u8")})
    assert one != GgufMetadata({"a": Typed(1, "u16"), "b": Typed(np.arange(2), "array[i64]")})
    assert one != GgufMetadata({"a": Typed(1, "u8"), "b": Typed(np.arange(3), "array[i64]")})
    assert one != {"a": 1}


def test_headers_travel_between_processes(tmp_path: Path) -> None:
    layout = lay_out("a.gguf", [], {"tokens": ["a", "b"], "numbers": np.arange(3), "n": 1})
    header = read_gguf(write_layout(tmp_path, layout, {}))
    assert pickle.loads(pickle.dumps(header)) == header
