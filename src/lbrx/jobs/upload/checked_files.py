"""The files of an upload: listed, complete, and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from lbrx.base.atomic_write import is_partial_file
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.formats.directory import read_shard
from lbrx.jobs.quantize.figures import RECORD_NAME, read_record

_WEIGHTS = (".gguf", ".safetensors")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.(?:gguf|safetensors))")
_UNFINISHED = (".partial", ".incomplete", ".part", ".tmp", ".crdownload")
_HIDDEN_UNFINISHED = re.compile(r"\..*\.(partial|replaced|feedback)(\..*)?|\..*\.partial\.journal")
_SECRET_NAMES = re.compile(
    r"\.env(\..*)?|\.netrc|\.npmrc|\.pypirc|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|pfx|p12|kdbx)|"
    r"credentials(\.json)?|secrets?(\..*)?|(hf_)?token(\.txt)?",
    re.IGNORECASE,
)
_SECRETS = {
    "a token of the Hugging Face hub": re.compile(rb"\bhf_[A-Za-z0-9]{30,}\b"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "an access key of AWS": re.compile(rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(rb"\b(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b"),
    "a URL with a password": re.compile(rb"https?://[^/\s:@\"']+:[^/\s@\"']+@"),
}
_SCANNED_BYTES = 4 << 20  # a larger file is not a text that somebody wrote
_LEFT_OUT = (RECORD_NAME,)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file, and its path in the repository."""

    path: Path
    name: str
    nbytes: int


def checked_files(source: Path) -> list[UploadedFile]:
    """The files of a model, a GGUF file with its shards, or a directory of several; raise if they must not be uploaded.

    Hidden files and the record of `lbrx quantize` are left out.
    """
    if not source.exists():
        raise FileError(f"{source}: no such file or directory")
    files = sorted(_files_of(source), key=lambda each: each.name)
    if not files:
        raise UsageError(f"{source}: has no files to upload")
    _check_complete(source, files)
    for file in files:
        _check_secrets(file)
    return files


def _files_of(source: Path) -> Iterator[UploadedFile]:
    if source.is_file():
        _check_not_begun(source.parent, source.name)
        match = _SHARD.fullmatch(source.name)
        paths = [source] if match is None else [path for path in source.parent.iterdir() if _is_shard(path.name, match)]
        yield from (UploadedFile(path, path.name, path.stat().st_size) for path in paths)
        return
    _check_not_begun(source.resolve().parent, source.resolve().name)
    yield from _below(source, "")


def _is_shard(name: str, of: re.Match[str]) -> bool:
    """Whether a file belongs to the same split model as another shard."""
    match = _SHARD.fullmatch(name)
    return match is not None and match.group(1, 3, 4) == of.group(1, 3, 4)


def _below(directory: Path, prefix: str) -> Iterator[UploadedFile]:
    for path in directory.iterdir():
        if is_partial_file(path):
            continue
        if _HIDDEN_UNFINISHED.fullmatch(path.name) or path.name.endswith(_UNFINISHED):
            raise UsageError(f"{path}: is unfinished; run the command that writes it again, then upload")
        if _SECRET_NAMES.fullmatch(path.name) and path.is_file():
            raise UsageError(f"{path}: has the name of a file with secrets; remove it from the directory, then upload")
        if path.name.startswith(".") or path.name in _LEFT_OUT:
            continue
        if path.is_dir():
            yield from _below(path, f"{prefix}{path.name}/")
        elif path.is_file():
            yield UploadedFile(path, prefix + path.name, path.stat().st_size)
        else:
            raise UsageError(f"{path}: is not a regular file; expected files and directories")


def _check_not_begun(parent: Path, name: str) -> None:
    """Raise if a run into this output was stopped: its staging directory is beside it."""
    partial = parent / f".{name}.partial"
    if partial.exists() or partial.with_name(f"{partial.name}.journal").exists():
        raise UsageError(f"{parent / name}: a run that writes it is unfinished; run its command again, then upload")


def _check_complete(source: Path, files: list[UploadedFile]) -> None:
    """Raise for outputs, shards and tensors that are missing."""
    names = {file.name for file in files}
    for output in read_record(source).values() if source.is_dir() else ():
        if output.states is None:
            raise UsageError(f"{source / output.name}: is unfinished; run 'lbrx quantize' again, then upload")
    for file in files:
        if match := _SHARD.fullmatch(file.name):
            expected = (f"{match[1]}-{number:05}-of-{match[3]}{match[4]}" for number in range(1, int(match[3]) + 1))
            missing = next((name for name in expected if name not in names), None)
            if missing is not None:
                raise UsageError(f"{file.path}: its shard {missing} is missing; expected all shards")
        if file.name.endswith(".index.json"):
            _check_index(file, names)
        if file.name.endswith(_WEIGHTS):
            _check_weights(file)


def _check_index(file: UploadedFile, names: set[str]) -> None:
    try:
        shards = set(json.loads(file.path.read_bytes())["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{file.path}: is not an index of shards: {error}") from error
    folder = file.name[: file.name.rfind("/") + 1]
    missing = sorted(shard for shard in shards if folder + str(shard) not in names)
    if missing:
        raise UsageError(f"{file.path}: its shard {missing[0]} is missing; expected all shards")


def _check_weights(file: UploadedFile) -> None:
    """Raise if a file of weights is not whole, as its header says."""
    try:
        read_shard(file.path)
    except LbrxError as error:
        raise UsageError(f"{error}; a damaged file is not uploaded") from error


def _check_secrets(file: UploadedFile) -> None:
    if _SECRET_NAMES.fullmatch(file.path.name):
        raise UsageError(f"{file.path}: has the name of a file with secrets; it is not uploaded")
    if file.name.endswith(_WEIGHTS) or file.nbytes > _SCANNED_BYTES:
        return
    content = file.path.read_bytes()
    found = next((name for name, pattern in _SECRETS.items() if pattern.search(content)), None)
    if found is not None:
        raise UsageError(f"{file.path}: contains {found}; remove it, then upload")
