"""The identity of a plan: two runs with the same one write the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from lbrx.formats.header import FileHeader
from lbrx.plan.records import Plan, StagePlan
from lbrx.plan.vocabularies import row_digest_parts
from lbrx.recipe import is_custom_method


def identity_of(plan: Plan, contents: Mapping[str, bytes]) -> dict[str, Any]:
    """What the bytes of the output depend on, by names that stand in messages when two plans differ.

    ``contents`` are the small files of the output by name.
    """
    return {
        "version of lbrx": version("lbrx"),
        "recipe": _digest(plan.recipe_text.encode()),
        "seed": plan.seed,
        "input file": {
            str(header.path.resolve()): _file_identity(header) for model in plan.models for header in model.files
        },
        "adapter file": {
            str(path.resolve()): _state(path)
            for model in plan.models
            if model.adapter is not None
            for path in sorted(model.adapter.glob("adapter_*"))
        },
        "method file": dict(_method_files(plan.stage)),
        "vocabulary": _digest(*row_digest_parts(plan.stage)),
        "layout of the output's files (--shard-size)": _digest(*(layout.header for layout in plan.layouts)),
        "file of the output": {name: _digest(content) for name, content in contents.items()},
    }


def _digest(*parts: bytes) -> str:
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def _file_identity(header: FileHeader) -> list[int | str]:
    """Size, time of change, and what the header says."""
    entries = "\n".join(f"{entry.name} {entry.type_name} {entry.shape} {entry.offset}" for entry in header.entries)
    return [*_state(header.path), _digest(entries.encode(errors="surrogatepass"))]


def _state(path: Path) -> list[int]:
    state = os.stat(path)
    return [state.st_size, state.st_mtime_ns]


def _method_files(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The contents of the files that custom methods are in, those of earlier stages included."""
    if is_custom_method(stage.method.name):
        source = Path(stage.method.function.__code__.co_filename)
        yield stage.method.name, _digest(source.read_bytes())
    for model in stage.models:
        if model.stage is not None:
            yield from _method_files(model.stage)
