"""Which models of a stage are run on which texts before it is merged, and where their inputs are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.output.plan import digest, file_state
from lbrx.jobs.merge.methods.parameters import InputGram, MethodSpec
from lbrx.jobs.merge.plan.gram_files import GramFolder
from lbrx.jobs.merge.plan.plan import method_files
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.recipe import Recipe
from lbrx.settings import arithmetic_version

DEFAULT_MAX_TOKENS = 8192
_MAX_TOKENS = "max_tokens"  # a parameter that methods may have


@dataclass(frozen=True, slots=True)
class TextRun:
    """A model, by its index in the stage, and the text that it is run on."""

    model: int
    text: Path
    max_tokens: int


class StageInputs:
    """The inputs of the models of a stage: ``texts`` are files by the names that the recipe uses."""

    def __init__(self, root: Path, parameter: str, texts: Mapping[str, Path], seed: int) -> None:
        self.root, self.texts = root, texts
        self._parameter, self._seed = parameter, seed
        self._folders: dict[TextRun, GramFolder] = {}

    def runs(self, stage: StagePlan) -> list[TextRun]:
        """Return what has to be run, in the order in which the jobs need it."""
        return list(dict.fromkeys(run for job in stage.jobs for run in self._runs_of(job)))

    def _runs_of(self, job: Job) -> list[TextRun]:
        """Return a run for each model of a job but its base."""
        if job.parameters is None or len(job.shape) != 2:
            return []
        most = int(job.parameters.shared.get(_MAX_TOKENS) or DEFAULT_MAX_TOKENS)
        models = [each.model for index, each in enumerate(job.inputs) if index != job.base_index]
        texts = job.parameters.across_models(self._parameter)
        return [TextRun(model, self.texts[str(text)], most) for model, text in zip(models, texts, strict=True)]

    def folder(self, stage: StagePlan, run: TextRun) -> GramFolder:
        """Return the folder of a run, named after everything that its content depends on."""
        known = self._folders.get(run)
        if known is None:
            text = digest(run.text.read_bytes())
            given = [arithmetic_version(), _identity_of(stage.models[run.model], self._seed), text, run.max_tokens]
            name = digest(json.dumps(given, sort_keys=True).encode())
            known = self._folders[run] = GramFolder(self.root / name)
        return known

    def gram(self, stage: StagePlan, job: Job, model: int) -> InputGram | None:
        """Return what a tensor of one of a job's models, without its base, is multiplied with."""
        runs = self._runs_of(job)
        if not runs:
            return None
        sources = [each for index, each in enumerate(job.inputs) if index != job.base_index]
        return self.folder(stage, runs[model]).gram(sources[model].tensor)


def stage_inputs(
    recipe: Recipe, spec: MethodSpec, directories: Sequence[Path], root: Path, seed: int
) -> StageInputs | None:
    """Return the inputs of a recipe, if its method needs some. Texts are searched in the directories."""
    if spec.text_parameter is None:
        return None
    texts = dict(_texts(recipe, spec.text_parameter, directories))
    return StageInputs(root, spec.text_parameter, texts, seed)


def _texts(recipe: Recipe, parameter: str, directories: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    parts = [part for module in recipe.modules.values() for part in module.slices]
    scopes = [recipe.parameters, *(module.parameters for module in recipe.modules.values())]
    for part in parts:
        scopes += [part.parameters, *(source.parameters for source in part.sources)]
    for scope in scopes:
        value = scope.get(parameter)
        for branch in () if value is None else value.branches:
            for point in branch.points:
                found = [directory / str(point) for directory in directories if (directory / str(point)).is_file()]
                if not found:
                    raise branch.location.error(f"{parameter} {str(point)!r}: there is no such file")
                yield str(point), found[0]


def _identity_of(model: InputModel, seed: int) -> Any:
    if model.stage is None:
        paths = [header.path for header in model.files]
        paths += [path for each in model.adapters for path in (sorted(each.glob("*")) if each.is_dir() else [each])]
        return [model.label, {str(path): file_state(path) for path in paths}]
    stage = model.stage
    texts = (
        {} if stage.inputs is None else {name: digest(path.read_bytes()) for name, path in stage.inputs.texts.items()}
    )
    return [
        stage.method.name,
        stage.recipe.name,
        seed,
        digest(repr(stage.jobs).encode()),
        list(method_files(stage)),
        texts,
        [_identity_of(each, seed) for each in stage.models],
    ]
