"""``lbrx.save``: tensors written as files, by the executor that writes every output."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.integer_parts import separate_parts
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.model_files import INDEX_NAME
from lbrx.files.formats.shards import index_json, lay_out_gguf, lay_out_safetensors
from lbrx.files.output.contents import PlannedTensor
from lbrx.files.output.model_plan import ModelPlan
from lbrx.files.output.nonfinite import describe
from lbrx.files.output.options import ProgressCallback, RunOptions
from lbrx.files.output.plan import NO_LIMIT_BYTES, SideFile, digest, shard_limit
from lbrx.files.output.run import execute
from lbrx.files.remote.paths import as_path
from lbrx.memory.limits import limited
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.coded import Encoding
from lbrx.tensors.dtype import DTYPES, DType
from lbrx.tensors.expr import Coded, Expr, KthSearch
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor, tensor


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor | np.ndarray[Any, Any]],
    metadata: Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
    max_shard_bytes: int | str | None = None,
    strict: bool = False,
    sync: bool = True,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write tensors or NumPy arrays, computing them on the way: streamed, in constant memory, atomically.

    The format is ``"safetensors"`` or ``"gguf"``, by default the path's ending. With ``max_shard_bytes`` a
    SafeTensors path is a directory that gets shards, their index and checksums, and a GGUF path the stem of its
    shards. NaN and infinite values are a warning, or an error if ``strict``. The other options are those of
    `lbrx.files.output.options.RunOptions`.

    After an error nothing is left but the old file. After a kill, call it again with the same arguments: if all tensors
    are computed from files alone, finished tensors are kept. Otherwise it starts again, because it is unknown whether
    values that were in the memory of another process are the same.

    >>> import lbrx, numpy as np, tempfile
    >>> path = tempfile.mkdtemp() + "/out.gguf"
    >>> save(path, {"w": lbrx.tensor(np.zeros(4, np.float32)).to("bf16")}, {"general.name": "tiny"})
    >>> lbrx.open(path)["w"].dtype
    DType(bf16)
    """
    if not isinstance(tensors, Mapping):
        raise UsageError(f"expected a dict of names and tensors to save, not {type(tensors).__name__}")
    with limited(threads, memory):
        given = {name: tensor(each) if isinstance(each, np.ndarray) else each for name, each in tensors.items()}
        plan = _plan(as_path(path), given, metadata or {}, format, max_shard_bytes)
        options = RunOptions(strict=strict, overwrite=not plan.is_directory, sync=sync, progress=progress)
        result = execute(plan, options, takes_over=True)
    if result.nonfinite:
        name, counts = next(iter(result.nonfinite.items()))
        number = f"; tensors with such values: {len(result.nonfinite)}" if len(result.nonfinite) > 1 else ""
        warnings.warn(f"{path}: tensor {name!r}: {describe(counts)}{number}", RuntimeWarning, stacklevel=2)


def _plan(
    target: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    format: str | None,
    max_shard_bytes: int | str | None,
) -> ModelPlan:
    is_sharded = max_shard_bytes is not None
    format = format or _format_of(target, is_sharded)
    limit_bytes = shard_limit(max_shard_bytes, NO_LIMIT_BYTES)
    tensors, metadata = separate_parts(tensors, metadata, format)
    specs = [_spec(name, each, format) for name, each in tensors.items()]
    side_files: tuple[SideFile, ...] = ()
    if format == "gguf":
        layouts = lay_out_gguf(specs, metadata, limit_bytes, target.name.removesuffix(".gguf"))
    elif format == "safetensors":
        layouts = lay_out_safetensors(specs, _strings(metadata), limit_bytes)
        if not is_sharded:
            layouts = [replace(layouts[0], name=target.name)]
        elif target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target}: exists; expected a new or empty directory for the shards")
        elif len(layouts) > 1:
            side_files = (SideFile(INDEX_NAME, index_json(layouts)),)
    else:
        raise UsageError(f"unknown format {format!r}; expected 'safetensors' or 'gguf'")
    planned = {name: PlannedTensor.of(name, each) for name, each in tensors.items()}
    origin = {"origin of the tensors": _origin(each.expr for each in tensors.values())}
    is_directory = format == "safetensors" and is_sharded
    return ModelPlan(target, is_directory, tuple(layouts), side_files, planned, (), origin)


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


def _spec(name: str, given: Tensor, format: str) -> TensorSpec:
    if not isinstance(given, Tensor):
        raise UsageError(f"{name!r} is a {type(given).__name__}; expected a Tensor (see lbrx.tensor)")
    if format == "gguf" and not isinstance(given.expr, Coded) and given.dtype.gguf is None:
        known = ", ".join(row.name for row in DTYPES.values() if row.gguf is not None)
        raise UsageError(f"tensor {name!r} is {given.dtype}, which GGUF does not have; cast it to one of {known}")
    return TensorSpec(name, given.type_name, given.shape)


class _InMemoryError(Exception):
    """A value is known to this process only."""


def _origin(roots: Iterable[Expr]) -> str:
    """What tensors are computed from, if that is files and numbers alone; else a text that no other call returns."""
    nodes: list[Expr | Encoding | KthSearch] = []
    numbers: dict[int, int] = {}

    def text_of(value: object) -> str:
        if isinstance(value, (Expr, Encoding, KthSearch)):
            if id(value) not in numbers:
                numbers[id(value)] = len(nodes)
                nodes.append(value)
            return f"node {numbers[id(value)]}"
        if isinstance(value, tuple):
            return f"({','.join(map(text_of, value))})"
        if isinstance(value, MmapStorage):
            return " ".join(map(str, (*value.file.identity, value.offset, value.nbytes)))
        if isinstance(value, np.ndarray):
            return digest(value.tobytes())
        if value is None or isinstance(value, (str, int, float, DType, Layout, Codec)):
            return repr(value)
        raise _InMemoryError

    try:
        texts = [text_of(root) for root in roots]
        for node in nodes:  # which grows meanwhile
            slots = [slot for base in type(node).__mro__ for slot in getattr(base, "__slots__", ()) if slot[0] != "_"]
            texts.append(f"{type(node).__name__} {[text_of(getattr(node, slot)) for slot in slots]}")
    except _InMemoryError:
        return uuid.uuid4().hex
    return digest(*(text.encode() for text in texts))
