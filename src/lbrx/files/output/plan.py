"""What a run needs to know of an output: its files, its small files, and how every tensor is made."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import xxhash

from lbrx.base import system
from lbrx.base.build import build
from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.plan_cache import Planned
from lbrx.errors import FileError
from lbrx.files.formats.header import FileHeader, FileLayout
from lbrx.files.remote.paths import RemotePath
from lbrx.settings import settings
from lbrx.tensors.expr import Expr
from lbrx.tensors.tensor import Tensor

Identity: TypeAlias = dict[str, Any]
DEFAULT_SHARD_BYTES = 5_000_000_000  # of directories
NO_LIMIT_BYTES = 1 << 62
VERSION_KEY = "version of lbrx"  # of an identity
_HF_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_OF_OUTPUTS = re.compile(r"\..*|.*\.(imatrix\.gguf|sensitivity\.json|generated\.txt)|quantized\.json", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SideFile:
    """A small file of the output: its bytes, or the file that it is a copy of."""

    name: str
    content: bytes | None = None
    source: Path | None = None

    def read(self) -> bytes:
        if self.content is not None:
            return self.content
        assert self.source is not None
        try:
            return self.source.read_bytes()
        except OSError as error:
            raise FileError(f"{self.source}: cannot be read: {error.strerror}") from error


class OutputPlan(Protocol):
    """A complete description of an output: the position of each tensor, and how it is computed."""

    @property
    def out(self) -> Path:
        """The directory, or the file, that is written."""

    @property
    def is_directory(self) -> bool:
        """Whether ``out`` is a directory of all files, not a file or the stem of its shards."""

    @property
    def layouts(self) -> tuple[FileLayout, ...]: ...

    @property
    def side_files(self) -> tuple[SideFile, ...]: ...

    @property
    def sources(self) -> tuple[FileHeader, ...]:
        """The files that tensors are read from."""

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def tensor(self, name: str) -> Tensor:
        """The tensor of a slot, as an expression in the slot's type."""

    def expression(self, name: str) -> Planned | Expr:
        """The same, to be evaluated: perhaps planned already, with a plan that it shares with other tensors."""

    def unit(self, name: str) -> str:
        """What a tensor is a part of: neighbours of the same unit are made together, from one look at their values."""

    def inputs(self, name: str) -> Mapping[str, Tensor]:
        """What a tensor is made from, by the names that messages use; may be empty."""

    def identity(self, contents: Mapping[str, bytes]) -> Identity:
        """What the bytes depend on; ``contents`` are the small files by name. Two runs with the same one are alike."""


def shard_limit(max_shard_bytes: int | str | None, default_bytes: int = DEFAULT_SHARD_BYTES) -> int:
    """The largest file to write, in bytes.

    >>> shard_limit("2GB"), shard_limit(None)
    (2000000000, 5000000000)
    """
    return default_bytes if max_shard_bytes is None else system.parse_bytes(max_shard_bytes)


def output_bytes(plan: OutputPlan) -> int:
    """Bytes of tensors that the output has."""
    return sum(slot.nbytes for layout in plan.layouts for slot in layout.slots)


def output_identity(
    inputs: Iterable[FileHeader], layouts: Sequence[FileLayout], contents: Mapping[str, bytes]
) -> Identity:
    """Everything that an output depends on, by names for messages about plans that differ."""
    bits = settings.activation_bits
    return {
        VERSION_KEY: build(),
        **({} if bits == 16 else {"precision of activations (--activation-bits)": bits}),
        "input file": {_full_name(header.path): _file_identity(header) for header in inputs},
        "layout of the output's files (--shard-size)": digest(*(layout.header for layout in layouts)),
        "file of the output": {name: digest(content) for name, content in contents.items()},
    }


def written_path(plan: OutputPlan) -> Path:
    """The path by which an output is opened: the directory, the file, or the first shard of a split model."""
    return plan.out if plan.is_directory else plan.out.with_name(plan.layouts[0].name)


def named_path(path: Path) -> Path:
    """Return a path whose last part is a name, so that files can be put beside it: "." and ".." are resolved.

    >>> named_path(Path("models/out")), named_path(Path(".")) == Path.cwd()
    (PosixPath('models/out'), True)
    """
    named = path.resolve() if path.name in ("", "..") else path
    if not named.name:
        raise FileError(f"{named}: is the root of the file system; expected another output")
    return named


def digest(*parts: bytes) -> str:
    """A short name for some bytes, cut into parts as they are."""
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def _full_name(path: Path) -> str:
    return str(path) if isinstance(path, RemotePath) else str(path.resolve())


def _file_identity(header: FileHeader) -> list[int | str]:
    """Size, time of change, and what the header says."""
    entries = "\n".join(f"{entry.name} {entry.type_name} {entry.shape} {entry.offset}" for entry in header.entries)
    return [*file_state(header.path), digest(entries.encode(errors="surrogatepass"))]


def model_state(path: Path) -> dict[str, list[int | str]]:
    """Return the states of the files of a model: one file, or those in a directory with its config and tokenizer.

    Files that lbrx writes into the directory do not count: GGUF files beside other weights, and measurements.
    """
    if isinstance(path, RemotePath) or not path.is_dir():
        return {path.name: file_state(path)}
    files = [each for each in sorted(path.iterdir()) if each.is_file() and not _OF_OUTPUTS.fullmatch(each.name)]
    if any(each.suffix in _HF_WEIGHTS for each in files):
        files = [each for each in files if each.suffix != ".gguf"]
    return {each.name: file_state(each) for each in files}


def file_state(path: Path) -> list[int | str]:
    """Size and time of change; of a remote file its size and version, asked from the service now."""
    if isinstance(path, RemotePath):
        from lbrx.files.remote.filesystem import fresh_state_of

        remote = fresh_state_of(path)
        return [remote.nbytes, remote.version]
    try:
        state = os.stat(path)
    except OSError as error:
        raise FileError(f"{path}: cannot be read any more: {error.strerror}") from error
    return [state.st_size, state.st_mtime_ns]
