"""The identity of a plan: two runs with the same one write the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import unwrap
from pathlib import Path

from lbrx.files.formats.header import FileLayout
from lbrx.files.output.plan import Identity, digest, file_state, output_identity
from lbrx.jobs.merge.plan.records import InputModel, StagePlan
from lbrx.jobs.merge.plan.vocabularies import row_digest_parts
from lbrx.jobs.merge.recipe import is_custom_method


def merge_identity(
    stage: StagePlan,
    models: Sequence[InputModel],
    recipe_text: str,
    seed: int,
    layouts: Sequence[FileLayout],
    contents: Mapping[str, bytes],
) -> Identity:
    """What the bytes of a merge depend on; ``contents`` are the small files of the output by name."""
    return {
        "recipe": digest(recipe_text.encode()),
        "seed": seed,
        "adapter file": {
            str(path.resolve()): file_state(path)
            for model in models
            if model.adapter is not None
            for path in sorted(model.adapter.glob("adapter_*"))
        },
        "method file": dict(_method_files(stage)),
        "vocabulary": digest(*row_digest_parts(stage)),
        **output_identity([header for model in models for header in model.files], layouts, contents),
    }


def _method_files(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The contents of the files that custom methods are in, those of earlier stages included."""
    if is_custom_method(stage.method.name):
        source = Path(unwrap(stage.method.function).__code__.co_filename)
        yield stage.method.name, digest(source.read_bytes())
    for model in stage.models:
        if model.stage is not None:
            yield from _method_files(model.stage)
