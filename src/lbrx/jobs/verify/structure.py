"""What the files of a model say of each other: the index of shards, and checksums that are there or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.errors import FileError
from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.formats.header import quoted
from lbrx.files.formats.source import open_source, read_at, size_of
from lbrx.files.formats.strict_json import MAX_JSON_BYTES, parse_object
from lbrx.files.output.checksum import ALGORITHM
from lbrx.files.output.run import CHECKSUMS_NAME
from lbrx.jobs.verify.records import Finding, error, note, warning

_DIRECTORIES = {"huggingface": ".safetensors", "pytorch-directory": ".bin"}


def check_index(model: Checkpoint) -> Iterator[Finding]:
    """The index of shards: opening has checked that its tensors are in their files; this is the other way round."""
    suffix = _DIRECTORIES.get(model.format)
    if suffix is None:
        return
    used = {header.path.name for header in model.files}
    for other in sorted(model.path.glob(f"*{suffix}")):
        if other.name not in used:
            yield warning(other.name, "is not a part of the model: no index names it")
    indices = sorted(model.path.glob(f"*{suffix}.index.json"))
    if not indices:
        return
    index = read_json(model, indices[0].name)
    weight_map = index.get("weight_map")
    named = weight_map.keys() if isinstance(weight_map, Mapping) else ()
    for entry in model.entries:
        if entry.name not in named:
            yield error(entry.name, f"is in a shard, but not in {indices[0].name}")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if total is not None and total != model.nbytes:
        yield warning(indices[0].name, f"says that the tensors have {total!r:.40} bytes, but they have {model.nbytes}")


def read_json(model: Checkpoint, name: str) -> dict[str, Any]:
    """A JSON file of a model's directory."""
    path = model.path / name
    with open_source(path) as file:
        nbytes = size_of(file)
        if nbytes > MAX_JSON_BYTES:
            raise FileError(f"{path}: has {nbytes} bytes, expected JSON of at most {MAX_JSON_BYTES}")
        return parse_object(read_at(file, path, 0, nbytes), str(path))


def expected_checksums(model: Checkpoint) -> tuple[dict[str, str], list[Finding]]:
    """The stored checksums of a directory, and the problems of the file with them."""
    if model.format not in _DIRECTORIES or not (model.path / CHECKSUMS_NAME).is_file():
        return {}, [note(str(model.path), f"has no {CHECKSUMS_NAME}: bytes are not compared with checksums")]
    described = read_json(model, CHECKSUMS_NAME)
    tensors, algorithm = described.get("tensors"), described.get("algorithm")
    if algorithm != ALGORITHM:
        return {}, [warning(CHECKSUMS_NAME, f"is made by {quoted(algorithm)}, which is not known: not compared")]
    if not isinstance(tensors, dict) or not all(isinstance(value, str) for value in tensors.values()):
        return {}, [error(CHECKSUMS_NAME, "has no object 'tensors' of checksums")]
    held = {entry.name for entry in model.entries}
    findings = [error(name, f"has a checksum in {CHECKSUMS_NAME}, but is not there") for name in tensors.keys() - held]
    findings += [warning(name, f"has no checksum in {CHECKSUMS_NAME}") for name in held - tensors.keys()]
    return tensors, sorted(findings, key=lambda finding: finding.place)
