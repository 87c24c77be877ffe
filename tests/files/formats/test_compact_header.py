"""Compact SafeTensors headers: read in one go, with the same result as the general reader, or left to that."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from lbrx.errors import FormatError
from lbrx.files.formats import safetensors as reader
from lbrx.files.formats.header import FileHeader, TensorSpec
from lbrx.files.formats.safetensors import lay_out
from lbrx.files.formats.safetensors_header import read_compact
from support.layout_writing import write_layout
from support.malformed_bytes import read_safetensors, safetensors_file, tensor

TENSORS = [
    TensorSpec("layers.0.weight", "bf16", (4, 3)),
    TensorSpec("layers.1.weight", "bf16", (4, 3)),
    TensorSpec("名前", "f32", ()),
    TensorSpec("nothing", "u32", (0, 7)),
    TensorSpec("norm", "u8", (5,)),
]


def compact(header: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def outcome(path: Path) -> FileHeader | str:
    try:
        return read_safetensors(path)
    except FormatError as error:
        return str(error)


def outcome_of_general_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> FileHeader | str:
    with monkeypatch.context() as patch:
        patch.setattr(reader, "read_compact", lambda *_: None)
        return outcome(path)


@pytest.mark.parametrize("metadata", [{}, {"format": "pt", "note": 'with "quotes" and \\ and ключ'}])
def test_what_is_laid_out_is_read_in_one_go(
    metadata: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = lay_out("a.safetensors", TENSORS, metadata)
    path = write_layout(tmp_path, layout, {slot.name: bytes(slot.nbytes) for slot in layout.slots})
    found = read_compact(layout.header[8:].decode(), len(layout.header), layout.file_bytes)
    assert found is not None
    assert found.metadata == (metadata or None)
    header = read_safetensors(path)
    assert tuple(found.entries) == header.entries
    assert header == outcome_of_general_reader(path, monkeypatch)


def test_what_the_reference_library_writes_is_read_in_one_go(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "a.safetensors"
    values = {"b": np.zeros((2, 3), np.float32), "a": np.zeros(5, np.int64), "c": np.zeros((), np.float16)}
    safetensors.numpy.save_file(values, path, metadata={"format": "np"})
    content = path.read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    found = read_compact(content[8 : 8 + header_bytes].decode(), 8 + header_bytes, len(content))
    assert found is not None
    assert sorted(entry.name for entry in found.entries) == ["a", "b", "c"]


OTHERWISE: dict[str, bytes] = {
    "spaces": json.dumps({"w": tensor()}).encode(),
    "escaped name": rb'{"\u0077":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
    "keys in another order": b'{"w":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}}',
    "metadata last": b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"__metadata__":{}}',
    "tensors in another order": compact({"b": tensor("U8", [1], [1, 2]), "a": tensor("U8", [1], [0, 1])}),
    "line break at the end": compact({"w": tensor()}) + b"\n",
}


@pytest.mark.parametrize("header", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_written_otherwise_is_left_to_the_general_reader(header: bytes, tmp_path: Path) -> None:
    assert read_compact(header.decode(), 8 + len(header), 10 + len(header)) is None
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file(header, b"\0\0"))
    assert sum(entry.nbytes for entry in read_safetensors(path).entries) == 2


WRONG: dict[str, bytes] = {
    "name twice": b'{"w":%b,"w":%b}' % (compact(tensor("U8", [2], [0, 2])), compact(tensor("U8", [0], [2, 2]))),
    "name of the metadata": compact({"w": tensor(), "__metadata__": tensor("U8", [0], [2, 2])}),
    "metadata twice": b'{"__metadata__":{"a":"1","a":"2"},"w":%b}' % compact(tensor()),
    "metadata number": b'{"__metadata__":{"a":1},"w":%b}' % compact(tensor()),
    "lone surrogate in metadata": rb'{"__metadata__":{"a":"\ud800"},"w":%b}' % compact(tensor()),
    "leading zero": b'{"w":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}',
    "leading zero of an offset": b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,02]}}',
    "comma in a shape": b'{"w":{"dtype":"U8","shape":[2,],"data_offsets":[0,2]}}',
    "comma at the end": b'{"w":%b,}' % compact(tensor()),
    "brace between": b'{"a":%b}"b":%b}' % (compact(tensor()), compact(tensor("U8", [0], [2, 2]))),
    "no comma": b'{"a":%b"b":%b}' % (compact(tensor()), compact(tensor("U8", [0], [2, 2]))),
    "unknown type": compact({"w": tensor("F128")}),
    "half a byte": compact({"w": tensor("F4", [3])}),
    "65 dimensions": compact({"w": tensor("U8", [1] * 64 + [2])}),
    "zero hides overflow": compact({"a": tensor(), "w": tensor("U8", [2**62, 4, 0], [2, 2])}),
    "wrong size": compact({"w": tensor("U8", [3])}),
    "gap": compact({"a": tensor("U8", [1], [0, 1]), "b": tensor("U8", [0], [2, 2])}),
    "data past the end": compact({"w": tensor("U8", [3], [0, 3])}),
    "data before the end": compact({"w": tensor("U8", [1], [0, 1])}),
    "control character in a name": b'{"a\x01":%b}' % compact(tensor()),
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
def test_what_is_wrong_has_the_general_reader_s_message(
    header: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_file(header, b"\0\0"))
    message = outcome(path)
    assert isinstance(message, str)
    assert message == outcome_of_general_reader(path, monkeypatch)


def test_changed_characters_never_make_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = lay_out("a.safetensors", TENSORS, {"format": "pt"})
    header, data = layout.header[8:], bytes(layout.file_bytes - len(layout.header))
    draw = random.Random(5)
    path = tmp_path / "a.safetensors"
    read = 0
    for _ in range(1500):
        changed = bytearray(header)
        for _ in range(draw.choice((1, 1, 2))):
            place = draw.randrange(len(changed))
            if draw.random() < 0.3:
                changed[place : place + 1] = draw.choice((b"", b"0", b",", b"}", b'"', b"]"))
            else:
                changed[place] = draw.choice(b'0123456789{}[],:"\\ abF\xc3')
        path.write_bytes(safetensors_file(bytes(changed), data))
        found = outcome(path)
        assert found == outcome_of_general_reader(path, monkeypatch)
        read += isinstance(found, FileHeader)
    assert read > 50
