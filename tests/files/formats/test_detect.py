"""Formats are told by content, not by name; what is rejected stands in the corpus of malformed files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from lbrx.errors import FileError
from lbrx.files.formats.detect import detect_format
from lbrx.files.formats.source import open_source
from support.malformed_bytes import gguf_file, safetensors_file


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.bin", gguf_file(), "gguf"),
        ("model-00001-of-00002.gguf", gguf_file(), "gguf-split"),
        ("model-00002-of-00002.gguf", gguf_file(), "gguf-split"),
        ("model-00003-of-00002.gguf", gguf_file(), "gguf"),
        ("model.gguf", safetensors_file({}), "safetensors"),
        ("model-00001-of-00002.safetensors", safetensors_file({}), "safetensors"),
        ("cut.safetensors", safetensors_file(b"{", length=99_999), "safetensors"),
    ],
)
def test_files(name: str, content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert detect_format(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.safetensors"], "huggingface"),
        (["model.safetensors.index.json", "other.gguf"], "huggingface"),
        (["x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "README.md"], "gguf-split"),
    ],
)
def test_directories(names: list[str], expected: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert detect_format(tmp_path) == expected


def test_file_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    safetensors.numpy.save_file({"a": np.zeros(3)}, path)
    assert detect_format(path) == "safetensors"


@pytest.mark.parametrize(("name", "reason"), [("absent", "No such file or directory"), ("a\0b", "embedded null byte")])
def test_a_file_that_cannot_be_opened_is_named(name: str, reason: str) -> None:
    with pytest.raises(FileError) as caught, open_source(Path(name)):
        pass
    assert str(caught.value) == f"{name}: cannot be opened: {reason}"
