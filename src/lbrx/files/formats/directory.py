"""Models in several files: Hugging Face directories and split GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError
from lbrx.files.formats.detect import detect_format, file_format
from lbrx.files.formats.header import FileHeader, quoted
from lbrx.files.formats.shards import (
    INDEX_SUFFIX,
    SPLIT_COUNT_KEY,
    SPLIT_NUMBER_KEY,
    SPLIT_TENSORS_KEY,
    ShardName,
    parse_shard_name,
    shard_name,
)
from lbrx.files.formats.source import is_directory, open_source, read_at, read_soon, size_of
from lbrx.files.formats.strict_json import MAX_JSON_BYTES, parse_object
from lbrx.registry import load

MAX_FILE_NAME_BYTES = 255
READERS = {
    "safetensors": "lbrx.files.formats.safetensors:read_header",
    "gguf": "lbrx.files.formats.gguf:read_header",
    "pytorch": "lbrx.files.formats.pickled:read_header",
}
TORCH_NAME = "pytorch_model.bin"
_SUFFIXES = {"safetensors": ".safetensors", "pytorch": ".bin"}


@dataclass(frozen=True, slots=True)
class DirectoryHeader:
    """The headers of all files of a model, in the order of their names, and config.json.

    >>> DirectoryHeader(Path("llama"), (), {"model_type": "llama"}).config
    {'model_type': 'llama'}
    """

    path: Path
    files: tuple[FileHeader, ...]
    config: dict[str, Any] | None


def read_file(path: Path) -> FileHeader:
    """Read the header of one whole file of any known format; a shard of a split model is an error.

    >>> import tempfile
    >>> from lbrx.files.formats import gguf
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory) / "a.gguf"
    ...     written = path.write_bytes(gguf.lay_out("a.gguf", [], {"general.architecture": "llama"}).header)
    ...     read_file(path).format
    'gguf'
    """
    header = read_shard(path)
    count = header.metadata.get(SPLIT_COUNT_KEY, 1) if header.format == "gguf" else 1
    if count > 1:
        raise FormatError(
            f"{path}: is one of {count} shards, expected the first one, named like {shard_name('x', 1, count, '.gguf')}"
        )
    return header


def read_directory(path: Path) -> DirectoryHeader:
    """Read the headers of a Hugging Face directory of SafeTensors or PyTorch files, or of all shards of a GGUF model,
    given by its first shard or its directory.

    >>> import tempfile
    >>> from lbrx.files.formats import safetensors
    >>> from lbrx.files.formats.header import TensorSpec
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     layout = safetensors.lay_out("model.safetensors", [TensorSpec("w", "u8", (4,))], {})
    ...     written = (Path(directory) / layout.name).write_bytes(layout.header + bytes(4))
    ...     [entry.name for entry in read_directory(Path(directory)).files[0].entries]
    ['w']
    """
    format = detect_format(path)
    if format == "gguf-split":
        files = _read_gguf_shards(_first_shard(path) if is_directory(path) else path)
        root = path if is_directory(path) else path.parent
    elif format == "huggingface":
        files, root = _read_huggingface(path), path
    elif format == "pytorch-directory":
        index = path / f"{TORCH_NAME}.index.json"
        files = _read_indexed(index, "pytorch") if index.exists() else [_read_format(path / TORCH_NAME, "pytorch")]
        root = path
    else:
        raise FileError(f"{path}: is a single {format} file, expected a directory or the first shard of a GGUF model")
    _check_unique(path, files)
    return DirectoryHeader(path, tuple(files), _read_config(root / "config.json"))


def read_shard(path: Path) -> FileHeader:
    """Read the header of one file, whole or a shard of a split model."""
    with open_source(path) as file:
        header: FileHeader = load(READERS[file_format(path, file)])(path, file)
        return header


def _read_huggingface(path: Path) -> list[FileHeader]:
    index = _find_index(path)
    if index is not None:
        return _read_indexed(index, "safetensors")
    whole = path / "model.safetensors"
    shards = [whole] if whole.exists() else sorted(path.glob("*.safetensors"))
    read_soon(shards)
    return [_read_format(shard, "safetensors") for shard in shards]


def _find_index(path: Path) -> Path | None:
    usual = path / f"model{INDEX_SUFFIX}"
    if usual.exists():
        return usual
    others = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if len(others) > 1:
        raise FileError(f"{path}: holds {len(others)} indices, expected one, such as {usual.name}")
    return others[0] if others else None


def _read_format(path: Path, format: str) -> FileHeader:
    header = read_shard(path)
    if header.format != format:
        expected = "SafeTensors" if format == "safetensors" else "PyTorch"
        raise FormatError(f"{path}: is a {header.format} file, expected {expected}")
    return header


def _read_indexed(index: Path, format: str) -> list[FileHeader]:
    """Read the shards that an index names, and check that each contains its tensors."""
    names_by_file: dict[str, list[str]] = {}
    for tensor_name, file_name in _weight_map(index).items():
        if not isinstance(file_name, str) or file_name not in names_by_file:
            names_by_file[_checked_file_name(index, tensor_name, file_name, _SUFFIXES[format])] = []
        names_by_file[file_name].append(tensor_name)
    files = []
    read_soon([index.parent / file_name for file_name in names_by_file])
    for file_name in sorted(names_by_file):
        shard = index.parent / file_name
        if not shard.exists():
            raise FileError(f"{index}: names the shard {quoted(file_name)}, which is missing")
        header = _read_format(shard, format)
        held = {entry.name for entry in header.entries}
        for tensor_name in names_by_file[file_name]:
            if tensor_name not in held:
                raise FormatError(f"{index}: tensor {quoted(tensor_name)} is not in its shard {file_name}")
        files.append(header)
    return files


def _weight_map(index: Path) -> dict[str, Any]:
    weight_map = parse_object(_read_text(index), str(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: 'weight_map' is {quoted(weight_map)}, expected an object of file names")
    return weight_map


def _checked_file_name(index: Path, tensor_name: str, file_name: Any, suffix: str) -> str:
    """Return the file name if it is a plain name next to the index; a path outside the directory is an error."""
    if (
        not isinstance(file_name, str)
        or not file_name.endswith(suffix)
        or file_name.startswith(".")
        or len(file_name.encode("utf-8", "replace")) > MAX_FILE_NAME_BYTES
        or any(character in "/\\:" or not character.isprintable() for character in file_name)
    ):
        raise FormatError(
            f"{index}: tensor {quoted(tensor_name)} is listed in {quoted(file_name)},"
            f" expected the plain name of a {suffix} file"
        )
    return file_name


def _read_text(path: Path) -> bytes:
    with open_source(path) as file:
        file_bytes = size_of(file)
        if file_bytes > MAX_JSON_BYTES:
            raise FormatError(f"{path}: has {file_bytes} bytes, expected JSON of at most {MAX_JSON_BYTES}")
        return read_at(file, path, 0, file_bytes)


def _read_config(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    return parse_object(_read_text(path).removeprefix(b"\xef\xbb\xbf"), str(path), unique_keys=False)


def _check_unique(path: Path, files: Sequence[FileHeader]) -> None:
    holder: dict[str, Path] = {}
    for header in files:
        for entry in header.entries:
            if entry.name in holder:
                raise FormatError(
                    f"{path}: tensor {quoted(entry.name)} is in both {holder[entry.name].name} and {header.path.name}"
                )
            holder[entry.name] = header.path


def _first_shard(directory: Path) -> Path:
    shards = sorted(directory.glob("*-*-of-*.gguf"))
    parsed = parse_shard_name(shards[0].name)
    if parsed is None or parsed.number != 1:
        raise FileError(f"{directory}: holds {shards[0].name}, but the first shard is missing")
    return shards[0]


def _read_gguf_shards(first: Path) -> list[FileHeader]:
    parsed = parse_shard_name(first.name)
    if parsed is None or parsed.number != 1:
        raise FileError(f"{first}: is not the first shard; open the first one, which opens all shards")
    files = []
    for number in range(1, parsed.count + 1):
        path = first.with_name(shard_name(parsed.stem, number, parsed.count, parsed.suffix))
        if not path.exists():
            raise FileError(f"{path}: is missing, one of {parsed.count} shards of {parsed.stem}")
        header = read_shard(path)
        if header.format != "gguf":
            raise FormatError(f"{path}: is a {header.format} file, expected GGUF")
        _check_split_keys(header, replace(parsed, number=number))
        files.append(header)
    _check_split_totals(files)
    return files


def _check_split_keys(header: FileHeader, name: ShardName) -> None:
    if name.count == 1 and SPLIT_COUNT_KEY not in header.metadata:
        return
    required = {SPLIT_NUMBER_KEY: name.number - 1, SPLIT_COUNT_KEY: name.count}
    for key, expected in required.items():
        value = header.metadata.get(key)
        if value != expected:
            raise FormatError(f"{header.path}: {key} is {value}, expected {expected} by the file's name")


def _check_split_totals(files: Sequence[FileHeader]) -> None:
    total = sum(len(header.entries) for header in files)
    for header in files:
        value = header.metadata.get(SPLIT_TENSORS_KEY)
        if value != total and (len(files) > 1 or value is not None):
            raise FormatError(f"{header.path}: {SPLIT_TENSORS_KEY} is {value}, but the shards hold {total} tensors")
        if header.byte_order != files[0].byte_order:
            raise FormatError(
                f"{header.path}: is {header.byte_order}-endian, expected {files[0].byte_order} like the first shard"
            )
