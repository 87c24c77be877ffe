"""Writing files: header and slots laid out first, data streamed into them, the finished file renamed.

Nothing is written onto a target: a partial file stands beside it until every byte is on disk. An input that is also
the output survives, and after a failure what stood at the target still stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lbrx.base import atomic_write, system
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.integer_parts import separate_parts
from lbrx.files.formats import shards
from lbrx.files.formats.header import FileLayout, Slot, TensorSpec
from lbrx.files.output.file_writer import FileDestination, FileWriter, writing
from lbrx.files.output.options import Progress, ProgressCallback
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Expr
from lbrx.tensors.tensor import Tensor

_NO_LIMIT = 1 << 62


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    max_shard_bytes: int | str | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write tensors, computing them on the way: streamed, in constant memory, atomically.

    The format is ``"safetensors"`` or ``"gguf"``, by default the path's ending. With ``max_shard_bytes`` a
    SafeTensors path is a directory that gets shards and their index, and a GGUF path the stem of its shards.

    >>> import lbrx, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/out.gguf"
    >>> save(path, {"w": lbrx.tensor(np.zeros(4, np.float32)).to("bf16")}, {"general.name": "tiny"})
    >>> lbrx.open(path)["w"].dtype
    DType(bf16)
    """
    target = Path(path)
    format = format or _format_of(target, sharded=max_shard_bytes is not None)
    limit = _NO_LIMIT if max_shard_bytes is None else system.parse_bytes(max_shard_bytes)
    tensors, metadata = separate_parts(tensors, metadata or {}, format)
    specs = [_spec(name, tensor, format) for name, tensor in tensors.items()]
    if format == "gguf":
        stem = target.name.removesuffix(".gguf")
        layouts = shards.lay_out_gguf(specs, metadata, limit, stem)
        _write_files(target.parent, layouts, tensors, progress)
    elif format == "safetensors" and max_shard_bytes is None:
        stem = target.name.removesuffix(".safetensors")
        layouts = shards.lay_out_safetensors(specs, _strings(metadata), limit, stem)
        layouts = [FileLayout(target.name, layouts[0].header, layouts[0].slots, layouts[0].file_bytes)]
        _write_files(target.parent, layouts, tensors, progress)
    elif format == "safetensors":
        layouts = shards.lay_out_safetensors(specs, _strings(metadata), limit)
        _write_directory(target, layouts, tensors, progress)
    else:
        raise UsageError(f"unknown format {format!r}; expected 'safetensors' or 'gguf'")


def _format_of(target: Path, sharded: bool) -> str:
    if target.suffix in (".safetensors", ".gguf"):
        return target.suffix[1:]
    if sharded:
        return "safetensors"
    raise UsageError(f"{target}: the ending tells no format; expected .safetensors or .gguf, or give format=")


def _strings(metadata: Mapping[str, Any]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise UsageError(f"SafeTensors metadata is text, but {key!r} is a {type(value).__name__}")
    return dict(metadata)


def _spec(name: str, tensor: Tensor, format: str) -> TensorSpec:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name!r} is a {type(tensor).__name__}; expected a Tensor (see lbrx.tensor)")
    if format == "gguf" and not isinstance(tensor.expr, Blocks) and tensor.dtype.gguf is None:
        known = ", ".join(row.name for row in DTYPES.values() if row.gguf is not None)
        raise UsageError(f"tensor {name!r} is {tensor.dtype}, which GGUF does not have; cast it to one of {known}")
    return TensorSpec(name, tensor.type_name, tensor.shape)


def _write_files(
    directory: Path, layouts: Sequence[FileLayout], tensors: Mapping[str, Tensor], progress: ProgressCallback | None
) -> None:
    """Write all files beside their targets and rename them only when the last one is complete."""
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory to write to")
    report = _reporter(layouts, progress)
    with ExitStack() as stack:
        targets = [directory / layout.name for layout in layouts]
        partials = [stack.enter_context(atomic_write.partial_file(target)) for target in targets]
        for partial, layout in zip(partials, layouts, strict=True):
            write_layout(partial, layout, tensors, report)
        for partial, target in zip(partials, targets, strict=True):
            atomic_write.replace(partial, target)


def _write_directory(
    target: Path, layouts: Sequence[FileLayout], tensors: Mapping[str, Tensor], progress: ProgressCallback | None
) -> None:
    """Write a directory of shards under another name and rename it when it is complete."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileError(f"{target}: exists; expected a new or empty directory for the shards")
    if not target.parent.is_dir():
        raise FileError(f"{target.parent}: no such directory to write to")
    report = _reporter(layouts, progress)
    with atomic_write.new_directory(target) as work:
        for layout in layouts:
            write_layout(work / layout.name, layout, tensors, report)
        if len(layouts) > 1:
            atomic_write.write_bytes(work / "model.safetensors.index.json", shards.index_json(layouts))


def _reporter(layouts: Sequence[FileLayout], progress: ProgressCallback | None) -> Callable[[Slot], None]:
    slots = [slot for layout in layouts for slot in layout.slots]
    total_bytes = sum(slot.nbytes for slot in slots)
    done_bytes = done_tensors = 0

    def report(slot: Slot) -> None:
        nonlocal done_bytes, done_tensors
        done_bytes += slot.nbytes
        done_tensors += 1
        if progress is not None:
            progress(Progress(done_bytes, total_bytes, done_tensors, len(slots), slot.name))

    return report


def write_layout(path: Path, layout: FileLayout, tensors: Mapping[str, Tensor], report: Callable[[Slot], None]) -> None:
    """Write one file: preallocate it, put the header, stream every tensor into its slot, and flush it to disk."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        system.preallocate(descriptor, layout.file_bytes, path)
        system.pwrite_all(descriptor, layout.header, 0, path)
        with writing(descriptor, path, layout.file_bytes, to_disk=True) as file:
            for slot in layout.slots:
                write_tensor(tensors[slot.name].expr, slot, file)
                report(slot)
        system.flush_to_disk(descriptor)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)


def write_tensor(expr: Expr, slot: Slot, file: FileWriter) -> None:
    """Stream one tensor into its slot."""
    from lbrx.engine.schedule import copy_blocks, evaluate_stores

    if isinstance(expr, Blocks):
        copy_blocks(expr, FileDestination(file, slot.offset, DTYPES["u8"]))
    elif slot.nbytes:
        evaluate_stores([(expr, FileDestination(file, slot.offset, expr.dtype))])
