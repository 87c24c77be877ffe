"""The plan of a merge: recipes and headers in, a frozen Plan out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lbrx.errors import UsageError
from lbrx.files.formats.header import FileLayout, TensorSpec
from lbrx.files.formats.shards import lay_out_safetensors
from lbrx.files.output.plan import DEFAULT_SHARD_BYTES, SideFile
from lbrx.jobs.merge.methods import check_code_allowed, load_method
from lbrx.jobs.merge.plan.checks import (
    copied_modules,
    copied_tensors,
    differing_architectures,
    differing_settings,
    differing_tokenizers,
    dropped_tensors,
    layer_problems,
    model_problems,
    raise_problems,
    undescribed_layers,
    with_common_architecture,
    without_architecture,
)
from lbrx.jobs.merge.plan.jobs import JobPlanner
from lbrx.jobs.merge.plan.models import ModelOpener, stage_model
from lbrx.jobs.merge.plan.outline import Outline
from lbrx.jobs.merge.plan.plan import Plan, inputs_root
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.plan.side_files import CARD_NAME, model_card, output_config, side_files
from lbrx.jobs.merge.plan.vocabularies import stage_vocabulary, tokenizer_donor, with_special_ids, with_vocabulary
from lbrx.jobs.merge.recipe import ModelRef, Recipe

_METADATA = {"format": "pt"}  # which the transformers library demands


def plan_merge(
    recipes: Sequence[Recipe],
    out: str | os.PathLike[str],
    *,
    recipe_text: str = "",
    directory: str | os.PathLike[str] = ".",
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    seed: int = 0,
    allow_code: bool = False,
    opener: ModelOpener | None = None,
    tensors: str | None = None,
    root: Path | None = None,
) -> Plan:
    """Decide everything about a merge. Headers and configs are read, weights are not.

    With ``tensors`` ("union" or "intersection") the models are sets of named tensors without an architecture.

    ``directory`` is where models and custom methods are looked for if they are not in the current one. The files of
    custom methods are run only with ``allow_code``. An ``opener`` of an earlier plan keeps the models open. Of several
    recipes the last is what none uses; the others are stages whose tensors feed it as expressions. ``root`` is where
    inputs of models are stored if a method needs them, by default beside ``out``.

    >>> import lbrx, tempfile
    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> folder = tempfile.mkdtemp()
    >>> lbrx.save(f"{folder}/a.safetensors", {"w": lbrx.tensor([1.0, 2.0], "f32")})
    >>> recipes = parse_recipes("{merge_method: passthrough, models: [{model: a.safetensors}]}")
    >>> plan = plan_merge(recipes, f"{folder}/out", directory=folder)
    >>> [(job.name, job.dtype.name) for job in plan.jobs]
    [('w', 'f32')]
    """
    opener = opener or ModelOpener((Path(), Path(directory)), rounds=False)
    last = last_recipe(recipes)
    stages: dict[str, StagePlan] = {}
    for recipe in recipes:
        check_code_allowed(recipe.method, directory, allow_code)
        stage = _plan_stage(recipe, stages, opener, Path(directory), seed, is_last=recipe is last, tensors=tensors)
        if stage.method.spec.text_parameter is not None:
            from lbrx.jobs.merge.plan.inputs import stage_inputs

            where = Path(), Path(directory)
            inputs = stage_inputs(recipe, stage.method.spec, where, root or inputs_root(Path(out)), seed)
            stage = replace(stage, inputs=inputs)
        stages[recipe.name or ""] = stage
    stage = stages[last.name or ""]
    donor = next(model for model in stage.models if model.ref == last.donor)
    layouts = _lay_out(stage.jobs, max_shard_bytes)
    files = side_files(stage, donor, layouts)
    repositories = [model.repository for model in opener.opened if model.repository is not None]
    card = SideFile(CARD_NAME, model_card(recipes, last, recipe_text, repositories).encode())
    return Plan(
        out=Path(out),
        stage=stage,
        jobs=_in_file_order(stage, layouts),
        layouts=layouts,
        side_files=(*files, card),
        seed=seed,
        recipe_text=recipe_text,
        warnings=(*_unused_stages(recipes, last), *(w for planned in stages.values() for w in planned.warnings)),
    )


def last_recipe(recipes: Sequence[Recipe]) -> Recipe:
    """The recipe whose result is the output: the one without a name, else the only one that no other uses.

    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = "{name: x, merge_method: passthrough, models: [{model: models/a}]}"
    >>> last_recipe(parse_recipes(text)).name
    'x'
    """
    for recipe in recipes:
        if recipe.name is None:
            return recipe
    used = {name for recipe in recipes for name in recipe.uses}
    ends = [recipe for recipe in recipes if recipe.name not in used]
    if len(ends) != 1:
        names = ", ".join(repr(recipe.name) for recipe in ends)
        raise ends[-1].location.error(
            f"several recipes are used by none ({names}); expected one, or one without a 'name', to be the output"
        )
    return ends[0]


def _unused_stages(recipes: Sequence[Recipe], last: Recipe) -> list[str]:
    used = {name for recipe in recipes for name in recipe.uses}
    unused = [recipe for recipe in recipes if recipe is not last and recipe.name not in used]
    return [f"{recipe.location}: stage {recipe.name!r} is used by no other and is not computed" for recipe in unused]


def _opened(ref: ModelRef, stages: dict[str, StagePlan], opener: ModelOpener, seed: int) -> InputModel:
    stage = stages.get(ref.path)
    if stage is None:
        return opener.open(ref)
    if ref.lora is not None:
        raise UsageError(f"{ref}: an adapter cannot be put on a stage; expected a model before '+{ref.lora}'")
    return stage_model(ref, stage, seed)


def _plan_stage(
    recipe: Recipe,
    stages: dict[str, StagePlan],
    opener: ModelOpener,
    directory: Path,
    seed: int,
    is_last: bool,
    tensors: str | None = None,
) -> StagePlan:
    method = load_method(recipe.method, directory)
    tokenizer_model = _opened(tokenizer_donor(recipe), stages, opener, seed)
    opened = {ref: _opened(ref, stages, opener, seed) for ref in recipe.models}
    models = with_common_architecture(recipe, opened) if tensors is None else without_architecture(recipe, opened)
    if any(model.architecture.joined for model in models.values()):
        from lbrx.jobs.merge.plan.layouts import with_common_layout

        models = with_common_layout(models)
    raise_problems(recipe, list(model_problems(models)))
    outline = Outline(recipe, models)
    raise_problems(recipe, list(layer_problems(recipe, outline)))
    planner = JobPlanner(recipe, method, models, resizes_vocabulary=recipe.tokenizer is not None, selection=tensors)
    planned = planner.jobs(outline)
    raise_problems(recipe, planner.problems)
    vocabulary = stage_vocabulary(recipe, models, tokenizer_model)
    jobs = with_vocabulary(planned, vocabulary)
    merged = tuple(models.values())
    donor = models[recipe.donor]
    warnings = (*recipe.warnings, *planner.warnings, *dropped_tensors(outline, jobs), *copied_tensors(merged, jobs))
    warnings += (*differing_architectures(donor, merged), *differing_settings(donor, merged))
    warnings += (*copied_modules(donor, merged),)
    warnings += (*differing_tokenizers(donor, merged),) if vocabulary is None else vocabulary.warnings
    config = with_special_ids(output_config(recipe, outline, jobs), recipe, tokenizer_model)
    warnings += (*undescribed_layers(outline, jobs, config),)
    return StagePlan(recipe, method, merged, tuple(jobs), config, is_last, tokenizer_model, vocabulary, warnings)


def _lay_out(jobs: Sequence[Job], max_shard_bytes: int) -> tuple[FileLayout, ...]:
    specs = [TensorSpec(job.name, job.dtype.name, job.shape) for job in jobs]
    return tuple(lay_out_safetensors(specs, _METADATA, max_shard_bytes))


def _in_file_order(stage: StagePlan, layouts: Sequence[FileLayout]) -> tuple[Job, ...]:
    return tuple(stage.by_name[slot.name] for layout in layouts for slot in layout.slots)
