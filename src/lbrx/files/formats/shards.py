"""Models in several files: how tensors are assigned to files, and how the files are named.

SafeTensors shards are `model-00001-of-00003.safetensors` next to `model.safetensors.index.json`; GGUF shards are
`name-00001-of-00003.gguf` with `split.*` keys, and the first one contains the key-values of the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats import safetensors
from lbrx.files.formats.header import FileLayout, TensorSpec
from lbrx.files.formats.safetensors_header import BY_NAME

INDEX_SUFFIX = ".safetensors.index.json"
SPLIT_NUMBER_KEY = "split.no"
SPLIT_COUNT_KEY = "split.count"
SPLIT_TENSORS_KEY = "split.tensors.count"
SPLIT_KEYS = (SPLIT_NUMBER_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY)
MAX_SHARDS = 65535  # split.count is u16, and names have five digits
_SHARD_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[a-z]+)", re.DOTALL | re.ASCII
)


@dataclass(frozen=True, slots=True)
class ShardName:
    """The parts of a shard's file name; numbers begin at 1.

    >>> ShardName("llama", 1, 3, ".gguf").count
    3
    """

    stem: str
    number: int
    count: int
    suffix: str


def shard_name(stem: str, number: int, count: int, suffix: str) -> str:
    """Return the file name of shard `number` (from 1) of `count`.

    >>> shard_name("model", 1, 3, ".safetensors")
    'model-00001-of-00003.safetensors'
    """
    return f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def parse_shard_name(name: str) -> ShardName | None:
    """Parse the file name of a shard; return None if it is not one.

    >>> parse_shard_name("llama-00002-of-00003.gguf")
    ShardName(stem='llama', number=2, count=3, suffix='.gguf')
    """
    match = _SHARD_NAME.fullmatch(name)
    if not match:
        return None
    parsed = ShardName(match["stem"], int(match["number"]), int(match["count"]), match["suffix"])
    return parsed if 1 <= parsed.number <= parsed.count else None


def tensor_nbytes(tensor: TensorSpec) -> int:
    """Return the bytes of a tensor in the format that has its type.

    >>> tensor_nbytes(TensorSpec("a", "q8_0", (2, 32))), tensor_nbytes(TensorSpec("a", "u32", (3,)))
    (68, 12)
    """
    if tensor.type_name not in BY_NAME:
        from lbrx.files.formats.gguf_types import GGML_TYPES

        if tensor.type_name in GGML_TYPES:
            return GGML_TYPES[tensor.type_name].nbytes(tensor.shape)
    return safetensors.tensor_nbytes(tensor.type_name, tensor.shape)


def split_into_shards(tensors: Sequence[TensorSpec], max_shard_bytes: int) -> list[list[TensorSpec]]:
    """Split a list of tensors into shards of at most `max_shard_bytes` of data. The order is kept, and a larger tensor
    gets its own shard.

    >>> tensors = [TensorSpec(name, "f32", (2,)) for name in "abc"]
    >>> [[tensor.name for tensor in shard] for shard in split_into_shards(tensors, 16)]
    [['a', 'b'], ['c']]
    """
    if max_shard_bytes <= 0:
        raise UsageError(f"max_shard_bytes is {max_shard_bytes}, expected at least 1")
    shards: list[list[TensorSpec]] = []
    shard_bytes = 0
    for tensor in tensors:
        nbytes = tensor_nbytes(tensor)
        if not shards or shard_bytes + nbytes > max_shard_bytes:
            shards.append([])
            shard_bytes = 0
        shards[-1].append(tensor)
        shard_bytes += nbytes
    return shards


def lay_out_safetensors(
    tensors: Sequence[TensorSpec], metadata: Mapping[str, str], max_shard_bytes: int, stem: str = "model"
) -> list[FileLayout]:
    """Lay out one file, or several shards if the tensors exceed `max_shard_bytes`. Each contains the metadata;
    the transformers library requires `"format": "pt"` in it.

    >>> tensors = [TensorSpec(name, "f32", (2,)) for name in "abc"]
    >>> [layout.name for layout in lay_out_safetensors(tensors, {"format": "pt"}, 16)]
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
    """

    def lay_out(name: str, shard: Sequence[TensorSpec], number: int, count: int) -> FileLayout:
        del number, count
        return safetensors.lay_out(name, shard, metadata)

    return _lay_out_shards(tensors, max_shard_bytes, stem, ".safetensors", lay_out)


def index_json(layouts: Sequence[FileLayout]) -> bytes:
    """Return the content of `model.safetensors.index.json` for these shard layouts.

    >>> layouts = lay_out_safetensors([TensorSpec("a", "f32", (2,))], {}, 16)
    >>> json.loads(index_json(layouts))
    {'metadata': {'total_size': 8}, 'weight_map': {'a': 'model.safetensors'}}
    """
    total_bytes = sum(slot.nbytes for layout in layouts for slot in layout.slots)
    weight_map = {slot.name: layout.name for layout in layouts for slot in layout.slots}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def lay_out_gguf(
    tensors: Sequence[TensorSpec],
    metadata: Mapping[str, Any],
    max_shard_bytes: int,
    stem: str,
    alignment: int | None = None,
) -> list[FileLayout]:
    """Lay out one file, or several shards if the tensors exceed `max_shard_bytes`.

    >>> tensors = [TensorSpec(name, "f32", (2,)) for name in "abc"]
    >>> [layout.name for layout in lay_out_gguf(tensors, {"general.architecture": "llama"}, 16, "llama")]
    ['llama-00001-of-00002.gguf', 'llama-00002-of-00002.gguf']
    """
    groups = split_into_shards(tensors, max_shard_bytes) or [[]]
    return lay_out_gguf_groups(groups, metadata, stem, alignment)


def lay_out_gguf_groups(
    groups: Sequence[Sequence[TensorSpec]], metadata: Mapping[str, Any], stem: str, alignment: int | None = None
) -> list[FileLayout]:
    """Lay out a shard for each group of tensors, or one file for a single group.

    >>> groups = [[TensorSpec(name, "f32", (2,)) for name in names] for names in ("ab", "c")]
    >>> [len(layout.slots) for layout in lay_out_gguf_groups(groups, {"general.architecture": "llama"}, "llama")]
    [2, 1]
    """
    from lbrx.files.formats import gguf
    from lbrx.files.formats.gguf_encode import typed_metadata
    from lbrx.files.formats.gguf_values import Typed

    aligned_to = gguf.DEFAULT_ALIGNMENT if alignment is None else alignment
    pairs = {key: typed for key, typed in typed_metadata(metadata).items() if key not in SPLIT_KEYS}

    def lay_out(name: str, shard: Sequence[TensorSpec], number: int, count: int) -> FileLayout:
        split = {
            SPLIT_NUMBER_KEY: Typed(number - 1, "u16"),
            SPLIT_COUNT_KEY: Typed(count, "u16"),
            SPLIT_TENSORS_KEY: Typed(sum(map(len, groups)), "i32"),
        }
        own = pairs if number == 1 else {}
        return gguf.lay_out(name, shard, own if count == 1 else {**own, **split}, aligned_to)

    return _lay_out_groups(groups, stem, ".gguf", lay_out)


def _lay_out_shards(
    tensors: Sequence[TensorSpec],
    max_shard_bytes: int,
    stem: str,
    suffix: str,
    lay_out: Callable[[str, Sequence[TensorSpec], int, int], FileLayout],
) -> list[FileLayout]:
    return _lay_out_groups(split_into_shards(tensors, max_shard_bytes) or [[]], stem, suffix, lay_out)


def _lay_out_groups(
    shards: Sequence[Sequence[TensorSpec]],
    stem: str,
    suffix: str,
    lay_out: Callable[[str, Sequence[TensorSpec], int, int], FileLayout],
) -> list[FileLayout]:
    names = [tensor.name for shard in shards for tensor in shard]
    if len(set(names)) != len(names):
        raise UsageError(f"{stem}{suffix}: a tensor name is given twice")
    if len(shards) > MAX_SHARDS:
        raise UsageError(f"{stem}{suffix}: {len(shards)} shards, expected at most {MAX_SHARDS}; raise max_shard_bytes")
    if len(shards) == 1:
        return [lay_out(stem + suffix, shards[0], 1, 1)]
    return [
        lay_out(shard_name(stem, number, len(shards), suffix), shard, number, len(shards))
        for number, shard in enumerate(shards, 1)
    ]
