"""A GGUF model in the shards of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbrx.errors import UsageError
from lbrx.files.formats import gguf
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.formats.header import FileHeader, FileLayout, TensorSpec
from lbrx.files.formats.shards import SPLIT_COUNT_KEY, SPLIT_NUMBER_KEY, SPLIT_TENSORS_KEY, shard_name
from lbrx.files.output.contents import Contents


def lay_out_as_source(contents: Contents, stem: str, old_names: Mapping[str, str] | None) -> tuple[FileLayout, ...]:
    """A file for each file of the source that has tensors left; ``old_names`` are those of the source."""
    files = contents.sources
    if not files or any(header.format != "gguf" for header in files):
        raise UsageError("only the shards of a GGUF model can be kept; give --shard-size to make shards")
    shards = [shard for shard in _shards(contents, files, old_names or {}) if shard]
    if len(shards) < 2:
        return (gguf.lay_out(f"{stem}.gguf", shards[0] if shards else [], contents.metadata),)
    count = len(shards)
    return tuple(
        gguf.lay_out(
            shard_name(stem, number, count, ".gguf"),
            shard,
            {
                **(contents.metadata if number == 1 else {}),
                SPLIT_NUMBER_KEY: Typed(number - 1, "u16"),
                SPLIT_COUNT_KEY: Typed(count, "u16"),
                SPLIT_TENSORS_KEY: Typed(len(contents.tensors), "i32"),
            },
        )
        for number, shard in enumerate(shards, 1)
    )


def _shards(contents: Contents, files: Sequence[FileHeader], old_names: Mapping[str, str]) -> list[list[TensorSpec]]:
    shard_of = {entry.name: number for number, header in enumerate(files) for entry in header.entries}
    shards: list[list[TensorSpec]] = [[] for _ in files]
    for tensor in contents.tensors:
        shards[shard_of[old_names.get(tensor.name, tensor.name)]].append(tensor.spec)
    return shards
