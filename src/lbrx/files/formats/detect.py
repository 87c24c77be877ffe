"""Detect the format of a path from its content."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from lbrx.errors import FileError, FormatError
from lbrx.files.formats import safetensors
from lbrx.files.formats.header import GGUF_MAGIC, ZIP_MAGIC
from lbrx.files.formats.shards import parse_shard_name
from lbrx.files.formats.source import is_directory, open_source, read_at, size_of

_HEAD_BYTES = 512
_TORCH_DIRECTORY = ("pytorch_model.bin", "pytorch_model.bin.index.json")
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # of PyTorch before 1.6
_PICKLE = "is a bare Python pickle; expected a PyTorch checkpoint of tensors"

# (first bytes of the file, what they mean)
_FOREIGN = (
    (b"version https://git-lfs.github.com/spec/", "is a Git LFS pointer, not the file itself; run git lfs pull"),
    (b"\x80\x02", _PICKLE),
    (b"\x80\x03", _PICKLE),
    (b"\x80\x04", _PICKLE),
    (b"\x80\x05", _PICKLE),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, probably of Keras; expected SafeTensors or GGUF"),
    (b"\x93NUMPY", "is a NumPy array; expected SafeTensors or GGUF"),
    (b"\x1f\x8b", "is compressed with gzip; expected SafeTensors or GGUF"),
    (b"lmgg", "is a GGML file, older than GGUF; convert it with llama.cpp first"),
    (b"fmgg", "is a GGML file, older than GGUF; convert it with llama.cpp first"),
    (b"tjgg", "is a GGML file, older than GGUF; convert it with llama.cpp first"),
)


def detect_format(path: Path) -> str:
    """Return `"safetensors"`, `"gguf"` or `"pytorch"` for a file; `"gguf-split"` (a shard, or a directory of shards),
    `"huggingface"` or `"pytorch-directory"` for a directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory) / "model.bin"
    ...     written = path.write_bytes(b"GGUF" + bytes(20))
    ...     detect_format(path)
    'gguf'
    """
    if is_directory(path):
        return _directory_format(path)
    with open_source(path) as file:
        format = file_format(path, file)
    return "gguf-split" if format == "gguf" and is_gguf_shard(path) else format


def file_format(path: Path, file: BinaryIO) -> str:
    """Return `"safetensors"`, `"gguf"` or `"pytorch"` for an open file; otherwise raise an error that says what it is.

    >>> with open_source(Path(__file__)) as file:
    ...     file_format(Path("detect.py"), file)
    Traceback (most recent call last):
    lbrx.errors.FormatError: detect.py: begins with b'\"""Detect th', expected a SafeTensors or GGUF file
    """
    file_bytes = size_of(file)
    if not file_bytes:
        raise FormatError(f"{path}: is empty, expected a SafeTensors or GGUF file")
    head = read_at(file, path, 0, min(file_bytes, _HEAD_BYTES))
    if head.startswith(GGUF_MAGIC):
        return "gguf"
    if _looks_like_safetensors(head):
        return "safetensors"
    if head.startswith((ZIP_MAGIC, LEGACY_MAGIC)):
        return "pytorch"
    for start, meaning in _FOREIGN:
        if head.startswith(start):
            raise FormatError(f"{path}: {meaning}")
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        raise FormatError(f"{path}: is an HTML page, probably from a failed download; expected SafeTensors or GGUF")
    if text.startswith((b"{", b"[")):
        raise FormatError(f"{path}: is JSON text; expected a SafeTensors or GGUF file, or the directory of a model")
    if not any(head):
        raise FormatError(
            f"{path}: begins with zeros, probably from an unfinished download; expected SafeTensors or GGUF"
        )
    raise FormatError(f"{path}: begins with {head[:12]!r}, expected a SafeTensors or GGUF file")


def _looks_like_safetensors(head: bytes) -> bool:
    header_bytes = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= header_bytes <= safetensors.MAX_HEADER_BYTES


def is_gguf_shard(path: Path) -> bool:
    """Return whether a file name is that of a GGUF shard.

    >>> is_gguf_shard(Path("llama-00001-of-00003.gguf")), is_gguf_shard(Path("llama.gguf"))
    (True, False)
    """
    parsed = parse_shard_name(path.name)
    return parsed is not None and parsed.suffix == ".gguf"


def _directory_format(path: Path) -> str:
    try:
        names = sorted(child.name for child in path.iterdir())
    except OSError as error:
        raise FileError(f"{path}: cannot be listed: {error.strerror}") from error
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return "huggingface"
    gguf_names = [name for name in names if name.endswith(".gguf")]
    models = {(parsed.stem, parsed.count) if (parsed := parse_shard_name(name)) else None for name in gguf_names}
    if len(models) == 1 and None not in models:
        return "gguf-split"
    if gguf_names:
        raise FileError(
            f"{path}: holds {len(gguf_names)} GGUF files, expected the path of one, such as {gguf_names[0]}"
        )
    if any(name in _TORCH_DIRECTORY for name in names):
        return "pytorch-directory"
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        raise FileError(
            f"{path}: holds no {_TORCH_DIRECTORY[0]}, .safetensors or .gguf files but {pickles[0]}; expected its path"
        )
    raise FileError(f"{path}: holds no .safetensors or .gguf files")
