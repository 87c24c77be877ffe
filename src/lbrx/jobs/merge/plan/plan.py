"""The plan of a whole merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from inspect import unwrap
from pathlib import Path
from typing import ClassVar

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.plan_cache import Planned, PlannedCalls
from lbrx.files.formats.header import FileHeader, FileLayout
from lbrx.files.output.plan import Identity, SideFile, digest, file_state, named_path, output_identity
from lbrx.files.remote.paths import is_remote
from lbrx.jobs.merge.plan.expressions import inputs_of, merged, merged_by
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.plan.vocabularies import row_digest_parts
from lbrx.tensors.expr import Expr
from lbrx.tensors.tensor import Tensor

TEXTS_KEY = "text"  # of an identity


@dataclass(frozen=True, eq=False)
class Plan:
    """A whole merge, an ``OutputPlan``: what ``execute`` does and ``--dry-run`` prints.

    ``jobs`` are in the order of the output's files. Everything random or slow to determine is already decided.
    """

    out: Path
    stage: StagePlan
    jobs: tuple[Job, ...]
    layouts: tuple[FileLayout, ...]
    side_files: tuple[SideFile, ...]
    seed: int
    recipe_text: str
    warnings: tuple[str, ...] = field(default=())
    is_directory: ClassVar[bool] = True

    @property
    def models(self) -> tuple[InputModel, ...]:
        """The models that are read from files, those of earlier stages included, once each."""
        return tuple({id(model.tensors): model for model in _leaves(self.stage)}.values())

    @property
    def sources(self) -> tuple[FileHeader, ...]:
        return tuple(header for model in self.models for header in model.files)

    def tensor(self, name: str) -> Tensor:
        return merged(self.stage, self.stage.by_name[name], self.seed)

    def expression(self, name: str) -> Planned | Expr:
        return merged_by(self._calls, self.stage, self.stage.by_name[name], self.seed)

    @cached_property
    def _calls(self) -> PlannedCalls:
        return PlannedCalls()

    def unit(self, name: str) -> str:
        return name

    def inputs(self, name: str) -> Mapping[str, Tensor]:
        job = self.stage.by_name[name]
        labels = [self.stage.models[source.model].label for source in job.inputs]
        return dict(zip(labels, inputs_of(self.stage, job), strict=True))

    def identity(self, contents: Mapping[str, bytes]) -> Identity:
        return merge_identity(self.stage, self.models, self.recipe_text, self.seed, self.layouts, contents)


def _leaves(stage: StagePlan) -> list[InputModel]:
    return [leaf for model in stage.models for leaf in ([model] if model.stage is None else _leaves(model.stage))]


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
            for adapter in model.adapters
            for path in (sorted(adapter.glob("adapter*")) if adapter.is_dir() else [adapter])
        },
        **({TEXTS_KEY: texts} if (texts := dict(_text_files(stage))) else {}),
        "method file": dict(method_files(stage)),
        "vocabulary": digest(*row_digest_parts(stage)),
        **output_identity([header for model in models for header in model.files], layouts, contents),
    }


def inputs_root(out: Path) -> Path:
    """Return the folder of the inputs that are measured for an output: beside it, or in the cache if it is remote."""
    if is_remote(out):
        return system.cache_directory("inputs") / digest(str(out).encode())
    out = named_path(out)
    return out.with_name(f".{out.name}.inputs")


def _text_files(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The contents of the texts that models are run on, those of earlier stages included."""
    for each in stages_of(stage):
        if each.inputs is not None:
            yield from ((str(path.resolve()), digest(path.read_bytes())) for path in each.inputs.texts.values())


def stages_of(stage: StagePlan) -> Iterator[StagePlan]:
    """A stage and those that it uses, inputs first; one that is used twice comes twice."""
    for model in stage.models:
        if model.stage is not None:
            yield from stages_of(model.stage)
    yield stage


def method_files(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The contents of the files that custom methods are in, those of earlier stages included."""
    if stage.method.is_custom:
        source = Path(unwrap(stage.method.function).__code__.co_filename)
        yield stage.method.name, digest(source.read_bytes())
    for model in stage.models:
        if model.stage is not None:
            yield from method_files(model.stage)
