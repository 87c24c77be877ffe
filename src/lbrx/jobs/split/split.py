"""``split`` and ``join``: a GGUF model in shards, and in one file again. Tensors are copied as they are."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from lbrx.base.system import parse_bytes
from lbrx.errors import UsageError
from lbrx.files.formats.header import FileLayout
from lbrx.files.formats.shards import lay_out_gguf_groups
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.contents import Contents
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import NO_LIMIT_BYTES, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute
from lbrx.jobs.convert.reading import read_contents


@takes_run_options
def split(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_size: int | str | None = None,
    max_tensors: int | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Write a GGUF model in shards of at most ``max_size`` bytes of tensors, or of ``max_tensors`` tensors.

    Shards are named after ``out``: ``llama-00001-of-00003.gguf`` for ``llama.gguf``. The last options are those of
    `lbrx.files.output.options.RunOptions`.

    >>> import lbrx, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> tensors = {name: lbrx.full((8,), 1.0, "f32") for name in "abc"}
    >>> lbrx.save(folder / "a.gguf", tensors, {"general.architecture": "llama"})
    >>> split(folder / "a.gguf", folder / "b.gguf", max_tensors=2).out.name
    'b-00001-of-00002.gguf'
    """
    return plan_and_execute(partial(plan_split, source, out, max_size, max_tensors), options)


@takes_run_options
def join(source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Unpack[RunKeywords]) -> RunResult:
    """Write a split GGUF model as one file; ``source`` is its first shard, or their folder.

    >>> import lbrx, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> tensors = {name: lbrx.full((8,), 1.0, "f32") for name in "abc"}
    >>> lbrx.save(folder / "a.gguf", tensors, {"general.architecture": "llama"})
    >>> shards = split(folder / "a.gguf", folder / "b.gguf", max_tensors=2).out
    >>> join(shards, folder / "c.gguf").tensors
    3
    """
    return plan_and_execute(partial(plan_join, source, out), options)


def plan_split(
    source: str | os.PathLike[str], out: str | os.PathLike[str], max_size: int | str | None, max_tensors: int | None
) -> ModelPlan:
    """Plan the shards of a model."""
    if (max_size is None) == (max_tensors is None):
        raise UsageError("expected either a size of shards (--max-size) or a number of tensors (--max-tensors)")
    if max_tensors is not None and max_tensors < 1:
        raise UsageError(f"shards of {max_tensors} tensors are not possible; expected at least 1")
    if max_size is not None and parse_bytes(max_size) < 1:
        raise UsageError(f"--max-size is {max_size}; expected at least 1 byte")
    contents, path = _gguf(source), Path(out)
    plan = plan_output(contents, path, max_shard_bytes=shard_limit(max_size, NO_LIMIT_BYTES))
    if max_tensors is None:
        return plan
    return replace(plan, layouts=_by_count(contents, path.name.removesuffix(".gguf"), max_tensors))


def plan_join(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> ModelPlan:
    """Plan the file of a model."""
    return plan_output(_gguf(source), Path(out), max_shard_bytes=NO_LIMIT_BYTES)


def _gguf(source: str | os.PathLike[str]) -> Contents:
    with reading(source):
        contents = read_contents(Path(source))
    if contents.format != "gguf":
        raise UsageError(f"{source}: is not a GGUF model; use lbrx convert with --shard-size for other formats")
    return contents


def _by_count(contents: Contents, stem: str, count: int) -> tuple[FileLayout, ...]:
    specs = [tensor.spec for tensor in contents.tensors]
    groups = [specs[first : first + count] for first in range(0, len(specs), count)] or [[]]
    return tuple(lay_out_gguf_groups(groups, contents.metadata, stem))
