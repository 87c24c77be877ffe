"""Pieces of which malformed files are made: builders that write whatever they are told."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.errors import FileError, FormatError
from lbrx.files.formats import gguf, safetensors
from lbrx.files.formats.header import FileHeader
from lbrx.files.formats.source import open_source


@dataclass(frozen=True)
class Malformed:
    """One case: `build` fills a directory and returns the path that `read` must reject."""

    name: str
    build: Callable[[Path], Path]
    read: Callable[[Path], object]
    error: type[FileError]
    message: str  # a regular expression


def read_safetensors(path: Path) -> FileHeader:
    """Open a file as SafeTensors, whatever it looks like."""
    with open_source(path) as file:
        return safetensors.read_header(path, file)


def read_gguf(path: Path) -> FileHeader:
    """Open a file as GGUF, whatever it looks like."""
    with open_source(path) as file:
        return gguf.read_header(path, file)


def safetensors_file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A SafeTensors file with any header: bytes as they are, or a value as JSON."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    """An entry of a SafeTensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def string(text: bytes | str, length: int | None = None) -> bytes:
    """A GGUF string, whose length may be a lie."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: bytes | str, type_id: int, value: bytes) -> bytes:
    """A GGUF key-value."""
    return string(key) + struct.pack("<I", type_id) + value


def array(type_id: int, count: int, elements: bytes = b"") -> bytes:
    """The value of a GGUF array."""
    return struct.pack("<IQ", type_id, count) + elements


def info(name: bytes | str = "w", sizes: tuple[int, ...] = (2,), type_id: int = 24, offset: int = 0) -> bytes:
    """A GGUF tensor info; type 24 is i8."""
    return string(name) + struct.pack(f"<I{len(sizes)}qIQ", len(sizes), *sizes, type_id, offset)


def gguf_file(
    pairs: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    data: bytes = bytes(64),
    *,
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file with any content; data begins at a multiple of `alignment`."""
    tensor_count = len(infos) if tensor_count is None else tensor_count
    pair_count = len(pairs) if pair_count is None else pair_count
    head = b"GGUF" + struct.pack("<Iqq", version, tensor_count, pair_count) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def single_file(name: str, content: bytes, sparse_bytes: int = 0) -> Callable[[Path], Path]:
    """Builds one file, extended with zeros up to `sparse_bytes`."""

    def build(directory: Path) -> Path:
        path = directory / name
        path.write_bytes(content)
        if sparse_bytes:
            os.truncate(path, sparse_bytes)
        return path

    return build


def tree(files: Mapping[str, bytes], opened: str = "") -> Callable[[Path], Path]:
    """Builds a directory, of which the file `opened` or the whole is opened."""

    def build(directory: Path) -> Path:
        for name, content in files.items():
            (directory / name).write_bytes(content)
        return directory / opened

    return build


def file_case(
    name: str, content: bytes, read: Callable[[Path], object], message: str, sparse_bytes: int = 0
) -> Malformed:
    """A single file that is not what its format demands."""
    return Malformed(name, single_file("file.bin", content, sparse_bytes), read, FormatError, message)
