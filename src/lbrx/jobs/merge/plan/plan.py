"""The plan of a whole merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.bindings import Bound
from lbrx.files.formats.header import FileHeader, FileLayout
from lbrx.files.output.plan import Identity, SideFile
from lbrx.jobs.merge.plan.expressions import inputs_of, merged, merged_by_template
from lbrx.jobs.merge.plan.identity import merge_identity
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.plan.templates import Templates
from lbrx.tensors.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """A whole merge, an ``OutputPlan``: what ``execute`` does and ``--dry-run`` prints.

    ``jobs`` stand in the order of the output's files; nothing that is random or slow to find out is left open.
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

    def bound(self, name: str) -> Bound:
        return merged_by_template(self.stage, self.stage.by_name[name], self.seed, self._templates)

    @cached_property
    def _templates(self) -> Templates:
        return Templates(self.stage.method, self.seed)

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
