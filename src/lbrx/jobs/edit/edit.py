"""``edit``: change the key-values of a GGUF file; the tensors stay where they are if the header has room.

If the new header is not longer than the old one, it is written over it. Meanwhile, a copy of the old header is beside
the file, and the next call puts it back if the write was interrupted. Otherwise a new file is written, with spare bytes
for later changes, and renamed. The file is locked meanwhile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lbrx.base import system
from lbrx.base.atomic_write import partial_file, replace, write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.file_lock import open_locked
from lbrx.errors import FileError, FormatError, UsageError, nearest
from lbrx.files.formats import gguf
from lbrx.files.formats.gguf_values import GgufMetadata, Typed
from lbrx.files.formats.header import FileHeader, TensorSpec
from lbrx.files.formats.shards import SPLIT_KEYS
from lbrx.files.formats.source import open_source
from lbrx.files.output.staging import check_is_model
from lbrx.models.tokenizers.template_worker import environment

FILLER_KEY = "header.padding"  # its text fills the header up to the first tensor
TEMPLATE_KEY = "tokenizer.chat_template"
_SPARE_BYTES = 4096
_COPY_BYTES = 1 << 30
_MARK = struct.Struct("<QQ")
_FIXED_KEYS = ("general.architecture", gguf.ALIGNMENT_KEY, *SPLIT_KEYS)


@dataclass(frozen=True, slots=True)
class EditResult:
    """The file, how many keys were set and removed, and whether tensors stayed in place."""

    path: Path
    changed: int
    removed: int
    is_in_place: bool


def edit(
    path: str | os.PathLike[str],
    changes: Mapping[str, Typed] | None = None,
    *,
    remove: Sequence[str] = (),
    chat_template: str | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> EditResult:
    """Set and remove key-values of a GGUF file, of a split model those of its first shard.

    With ``out``, the changed model is written there and the file stays as it is.

    >>> import lbrx, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.gguf"
    >>> lbrx.save(path, {"w": lbrx.full((2,), 1.0, "f32")}, {"general.architecture": "llama", "general.name": "old"})
    >>> edit(path, {"general.name": Typed("new", "str")}).is_in_place
    True
    >>> lbrx.open(path).metadata["general.name"]
    'new'
    """
    source = Path(path)
    if out is None and source.is_symlink():
        raise FileError(f"{source}: is a symbolic link, and others may use its target; expected a file, or --out")
    with _alone(source.resolve(), only_reads=out is not None):
        restore_header(source.resolve())
        if out is None:
            system.remove_file(_new_file(source))  # of an edit that was killed
        header = _read(source)
        pairs = _changed(source, header, dict(changes or {}), remove, chat_template)
        counts = len(changes or {}) + (chat_template is not None), len(remove)
        if out is not None:
            target = Path(out)
            if target.exists():
                if not overwrite:
                    raise FileError(f"{target}: exists already; give --overwrite to replace it")
                check_is_model(target)
            with partial_file(target) as partial:
                _copy(source, partial, _filled(header, pairs, None), header)
                replace(partial, target)
            return EditResult(target, *counts, False)
        fitting = _filled(header, pairs, _data_start(header))
        if fitting is None:
            _replace(source, _filled(header, pairs, None), header)
        else:
            _write_in_place(source, fitting)
        return EditResult(source, *counts, fitting is not None)


@contextmanager
def _alone(path: Path, *, only_reads: bool) -> Iterator[None]:
    """Lock a file; raise if another edit holds the lock. A file that can only be read is not edited meanwhile."""
    if not path.is_file() or (only_reads and not os.access(path, os.W_OK)):
        yield
        return
    descriptor = open_locked(path, must_exist=True)
    if descriptor is None:
        raise UsageError(f"{path}: another edit of this file is running; wait for it")
    try:
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> FileHeader:
    with open_source(path) as file:
        header = gguf.read_header(path, file)
    if header.byte_order != "little":
        raise FormatError(f"{path}: is big-endian; expected a little-endian file to edit")
    return header


def _changed(
    path: Path, header: FileHeader, changes: dict[str, Typed], remove: Sequence[str], template: str | None
) -> dict[str, Typed]:
    if template is not None:
        _check_template(template)
        changes[TEMPLATE_KEY] = Typed(template, "str")
    if not changes and not remove:
        raise UsageError("nothing to change; expected keys to set or remove")
    metadata = header.metadata
    assert isinstance(metadata, GgufMetadata)
    pairs = {key: typed for key, typed in metadata.typed().items() if key != FILLER_KEY}
    for key in (*changes, *remove):
        if key in _FIXED_KEYS:
            raise UsageError(f"key {key!r} describes the tensors or the file and cannot be changed")
    _check_layers(changes, remove, pairs)
    for key in remove:
        if key not in pairs:
            raise UsageError(f"{path}: has no key {key!r}{nearest(key, pairs)}")
        del pairs[key]
    return pairs | changes


def _check_template(template: str) -> None:
    from jinja2 import TemplateSyntaxError

    try:
        environment().parse(template)
    except TemplateSyntaxError as error:
        raise UsageError(f"the chat template is not valid: line {error.lineno}: {error.message}") from error


def _check_layers(changes: Mapping[str, Typed], remove: Sequence[str], pairs: Mapping[str, Typed]) -> None:
    """Raise if the number of layers is changed, which is that of the tensors."""
    architecture = pairs.get("general.architecture")
    key = f"{None if architecture is None else architecture.value}.block_count"
    if key in remove or (key in changes and key in pairs and changes[key].value != pairs[key].value):
        raise UsageError(
            f"key {key!r} is the number of layers in the file; 'lbrx quantize --prune-layers' removes some"
        )


def _data_start(header: FileHeader) -> int:
    return header.entries[0].offset if header.entries else header.file_bytes


def _filled(header: FileHeader, pairs: dict[str, Typed], length: int | None) -> Any:
    """The header that is exactly so long, or None if it cannot be; without a length, one with spare bytes."""
    specs = [TensorSpec(entry.name, entry.type_name, entry.shape) for entry in header.entries]
    alignment = pairs[gguf.ALIGNMENT_KEY].value if gguf.ALIGNMENT_KEY in pairs else gguf.DEFAULT_ALIGNMENT

    def laid_out(filler: int | None) -> bytes:
        own = pairs if filler is None else {**pairs, FILLER_KEY: Typed(" " * filler, "str")}
        return gguf.lay_out(header.path.name, specs, own, alignment).header

    plain = laid_out(None)
    if length is None:
        return laid_out(_SPARE_BYTES)
    if len(plain) == length:
        return plain
    least = laid_out(0)
    if len(least) > length:
        return None
    fitting = laid_out(length - len(least))
    return fitting if len(fitting) == length else None


def _write_in_place(path: Path, header: bytes) -> None:
    saved = _saved_header(path)
    with path.open("rb") as file:
        write_atomically(saved, _file_mark(path) + file.read(len(header)))
    _overwrite(path, header)
    system.remove_file(saved)


def restore_header(path: Path) -> None:
    """Put back the header of a file whose change was interrupted; raise if the file has been replaced since."""
    saved = _saved_header(path)
    if not saved.exists():
        return
    content = saved.read_bytes()
    mark, header = content[: _MARK.size], content[_MARK.size :]
    if not path.exists() or mark != _file_mark(path):
        raise FileError(
            f"{saved}: is the header of another file that was {path.name!r} when a change was interrupted; "
            "remove it if that file is no longer needed"
        )
    _overwrite(path, header)
    system.remove_file(saved)


def _file_mark(path: Path) -> bytes:
    """Return what a file keeps while its header changes: its size and its number in the file system."""
    state = path.stat()
    return _MARK.pack(state.st_size, state.st_ino)


def _saved_header(path: Path) -> Path:
    return path.with_name(f".{path.name}.header")


def _overwrite(path: Path, header: bytes) -> None:
    fd = system.open_write(path, must_exist=True)
    try:
        system.pwrite_all(fd, header, 0, path)
        system.flush_to_disk(fd, path)
    finally:
        os.close(fd)


def _replace(path: Path, header: bytes, old: FileHeader) -> None:
    """Replace a file by a copy with another header."""
    partial = _new_file(path)
    os.close(system.open_write(partial, must_be_new=True))
    try:
        _copy(path, partial, header, old)
        replace(partial, path)
    finally:
        system.remove_file(partial)


def _new_file(path: Path) -> Path:
    """One name for all edits, which the lock allows: the next one finds what a killed one left."""
    return path.with_name(f".{path.name}.edited")


def _copy(source: Path, partial: Path, header: bytes, old: FileHeader) -> None:
    """Write a header and the tensors of a file; where the file system can share blocks, the system does."""
    start = _data_start(old)
    fd = system.open_write(partial, must_exist=True)
    try:
        system.pwrite_all(fd, header, 0, partial)
        with source.open("rb") as file:
            _copy_range(file.fileno(), fd, start, len(header), old.file_bytes - start, partial)
        system.flush_to_disk(fd, partial)
    finally:
        os.close(fd)


def _copy_range(source: int, target: int, first: int, to: int, count: int, path: Path) -> None:
    copy = getattr(os, "copy_file_range", None)  # not on macOS
    while count:
        done = 0
        if copy is not None:
            try:
                done = copy(source, target, min(count, _COPY_BYTES), first, to)
            except OSError:
                copy = None
        if not done:
            data = os.pread(source, min(count, 8 << 20), first)
            if not data:
                raise FileError(f"{path}: the source became shorter while it was copied")
            system.pwrite_all(target, data, to, path)
            done = len(data)
        first, to, count = first + done, to + done, count - done
