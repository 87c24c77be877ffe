"""What keeps models from being merged, found in their headers and configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lbrx.errors import UsageError
from lbrx.jobs.merge.plan.outline import Outline
from lbrx.jobs.merge.plan.records import InputModel, Job
from lbrx.jobs.merge.recipe import ModelRef, Recipe
from lbrx.models.architectures import AUTOMATIC, automatic, check_names, check_shapes

_LISTED_PROBLEMS = 3


def raise_problems(recipe: Recipe, problems: Sequence[str]) -> None:
    """One error for all problems, which names the first few."""
    if not problems:
        return
    unique = list(dict.fromkeys(problems))
    listed = "; ".join(unique[:_LISTED_PROBLEMS])
    more = f"; and {len(unique) - _LISTED_PROBLEMS} more" if len(unique) > _LISTED_PROBLEMS else ""
    raise UsageError(f"{recipe.location.source}: the models cannot be merged: {listed}{more}")


def with_common_architecture(recipe: Recipe, models: Mapping[ModelRef, InputModel]) -> dict[ModelRef, InputModel]:
    """The models, those without a config read as the donor is; an error if their architectures differ.

    Where the donor's architecture is not known, the names of the tensors are all that counts.
    """
    donor = models[recipe.donor]
    recognized: dict[ModelRef, InputModel] = {}
    problems = []
    for ref, model in models.items():
        if model.architecture is donor.architecture or model.architecture.name == donor.architecture.name == AUTOMATIC:
            recognized[ref] = model
        elif not donor.config:
            recognized[ref] = replace(model, architecture=automatic(model.infos))
        elif not model.config:
            recognized[ref] = replace(model, architecture=donor.architecture, config=donor.config)
        else:
            problems.append(
                f"the architecture of {model.label} is {_architecture_text(model)}, "
                f"but that of {donor.label} is {_architecture_text(donor)}"
            )
    raise_problems(recipe, problems)
    return recognized


def _architecture_text(model: InputModel) -> str:
    if model.architecture.name == AUTOMATIC:
        return f"unknown (model_type: {model.config.get('model_type')!r})"
    return repr(model.architecture.name)


def model_problems(models: Mapping[ModelRef, InputModel]) -> Iterator[str]:
    """Models that are not what their configs say, or that cannot be computed with."""
    for model in models.values():
        if model.stage is not None:
            continue
        names, shapes = model.header.shapes.keys(), model.header.shapes
        for problem in check_names(model.architecture, model.config, names):
            yield f"{model.label}: {problem}"
        for problem in check_shapes(model.architecture, model.config, shapes):
            yield f"{model.label}: {problem}"


def layer_problems(recipe: Recipe, outline: Outline) -> Iterator[str]:
    """Layer ranges beyond a model's layers, and whole models with different numbers of layers."""
    for part in outline.language_module.slices:
        counts = {source.model: outline.roles[source.model].model.layer_count for source in part.sources}
        for source in part.sources:
            if source.layer_range is not None and source.layer_range[1] > counts[source.model]:
                raise source.location.error(
                    f"'layer_range' {list(source.layer_range)} ends beyond the {counts[source.model]} layers of "
                    f"model {str(source.model)!r}"
                )
        if part.layers is not None:
            continue
        donor = recipe.donor if recipe.donor in counts else part.sources[0].model
        for model, count in counts.items():
            if count != counts[donor]:
                yield f"{model} has {count} layers, but {donor} has {counts[donor]}"


def dropped_tensors(outline: Outline, jobs: Sequence[Job]) -> Iterator[str]:
    """A warning for each model with tensors outside the layers that the output has no place for."""
    made = {job.name for job in jobs}
    for roles in outline.roles.values():
        lost = [role.name for role in roles.outside if roles.in_output(role).name not in made]
        present = [name for name in lost if name in roles.model.infos]
        if present:
            yield (
                f"{len(present)} tensors of {roles.model.label} are in no slice and not in the output, "
                f"such as {present[0]!r}"
            )


def copied_tensors(models: Sequence[InputModel], jobs: Sequence[Job]) -> Iterator[str]:
    """A warning if there are tensors that are copied because they are no floating numbers."""
    copied = [job for job in jobs if job.is_copy and not job.dtype.is_float]
    if copied and len(models) > 1:
        first = copied[0]
        yield (
            f"{len(copied)} tensors of whole numbers are copied and not merged, such as {first.name!r} "
            f"({first.dtype}) from {models[first.inputs[0].model].label}"
        )
