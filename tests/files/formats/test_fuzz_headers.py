"""Mutated headers: whatever happens to a file, it is rejected with an error of lbrx or describes bytes within it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbrx.errors import FileError
from lbrx.files.formats import gguf, safetensors
from lbrx.files.formats.gguf_values import StringArray, Typed
from lbrx.files.formats.header import FileHeader, FileLayout, TensorSpec, element_count
from support.malformed_bytes import read_gguf, read_safetensors

Mutation = Callable[[bytearray], None]


def whole(layout: FileLayout) -> bytes:
    return layout.header.ljust(layout.file_bytes, b"\0")


SAFETENSORS_FILE = whole(
    safetensors.lay_out(
        "a.safetensors",
        [TensorSpec("a", "bf16", (2, 3)), TensorSpec("b", "i4", (5,)), TensorSpec("c", "f32", (0,))],
        {"format": "pt"},
    )
)
GGUF_FILE = whole(
    gguf.lay_out(
        "a.gguf",
        [TensorSpec("a", "f32", (2, 3)), TensorSpec("b", "q8_0", (1, 32)), TensorSpec("c", "i8", (5,))],
        {
            "general.architecture": "llama",
            "tokenizer.ggml.tokens": ["<s>", "a", "é"],
            "scores": np.arange(3, dtype=np.float32),
            "flags": [True, False],
            "count": Typed(3, "u16"),
        },
        alignment=8,
    )
)

INTERESTING = st.sampled_from([0, 1, 7, 8, 0x7F, 0x80, 0xFF, ord("["), ord("{"), ord('"'), ord("-"), ord("9")])


@st.composite
def mutations(draw: st.DrawFn, size: int) -> Mutation:
    """Overwrite, cut, repeat, move or insert a piece."""
    mutation = draw(st.sampled_from(["set", "word", "cut", "truncate", "insert", "move", "grow"]))
    begin = draw(st.integers(0, size - 1))
    length = draw(st.integers(1, 16))
    target = draw(st.integers(0, size - 1))
    byte = draw(INTERESTING | st.integers(0, 255))

    def mutate(content: bytearray) -> None:
        if mutation == "set":
            content[begin : begin + 1] = bytes([byte])
        elif mutation == "word":
            content[begin : begin + 8] = bytes([byte]) * 8
        elif mutation == "cut":
            del content[begin : begin + length]
        elif mutation == "truncate":
            del content[begin:]
        elif mutation == "insert":
            content[begin:begin] = bytes([byte]) * length
        elif mutation == "move":
            content[target : target + length] = content[begin : begin + length]
        else:
            content.extend(bytes([byte]) * length)

    return mutate


def check(header: FileHeader) -> None:
    """What every accepted header promises: names once, and bytes that lie within the file and do not overlap."""
    assert len({entry.name for entry in header.entries}) == len(header.entries)
    end = 0
    for entry in header.entries:
        assert end <= entry.offset <= entry.end <= header.file_bytes
        assert element_count(entry.shape) >= 0
        if entry.dtype:
            assert entry.nbytes == entry.dtype.nbytes(element_count(entry.shape))
        end = entry.end
    for value in header.metadata.values():
        if isinstance(value, StringArray):
            assert len(list(value)) == len(value)


@pytest.mark.parametrize(
    ("original", "read"), [(SAFETENSORS_FILE, read_safetensors), (GGUF_FILE, read_gguf)], ids=["safetensors", "gguf"]
)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_headers(original: bytes, read: Callable[[Path], FileHeader], data: st.DataObject) -> None:
    content = bytearray(original)
    for mutate in data.draw(st.lists(mutations(len(original)), min_size=1, max_size=3)):
        mutate(content)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with suppress(FileError):  # which lets every other error fail the test
            check(read(Path(file.name)))


@pytest.mark.parametrize(
    ("original", "read"), [(SAFETENSORS_FILE, read_safetensors), (GGUF_FILE, read_gguf)], ids=["safetensors", "gguf"]
)
def test_every_truncation(original: bytes, read: Callable[[Path], FileHeader], tmp_path: Path) -> None:
    path = tmp_path / "file"
    last_padding = {len(original) - 1, len(original) - 2, len(original) - 3} if read is read_gguf else set()
    for size in range(len(original)):
        path.write_bytes(original[:size])
        if size in last_padding:
            check(read(path))
        else:
            with pytest.raises(FileError):
                read(path)
