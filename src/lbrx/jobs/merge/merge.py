"""``lbrx.merge``: a recipe in, a merged model out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from lbrx.base.atomic_write import write_atomically
from lbrx.base.system import remove_tree
from lbrx.errors import UsageError
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.options import CountCallback, RunKeywords, takes_run_options
from lbrx.files.output.plan import OutputPlan, digest, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced, staging_of
from lbrx.files.output.staging import Staging
from lbrx.jobs.merge.methods import method_lookup
from lbrx.jobs.merge.plan import Plan, plan_merge
from lbrx.jobs.merge.plan.jobs import SELECTIONS
from lbrx.jobs.merge.plan.merge_plan import last_recipe
from lbrx.jobs.merge.plan.plan import inputs_root, stages_of
from lbrx.jobs.merge.recipe import Recipe, load_recipes, parse_recipes

_STAGES_NAME = ".lbrx.stages.json"  # what the stages in a directory were made from


@takes_run_options
def merge(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    quantize: str | None = None,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    allow_code: bool = False,
    tensors: str | None = None,
    stages: str | os.PathLike[str] | None = None,
    measuring: CountCallback | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Merge models as a recipe says, into a directory, or into a file whose name ends in ``.gguf``.

    ``recipe`` is the path of a YAML file in mergekit's language, its text (anything with a line break or a brace), or
    a dictionary with the same keys.
    Models are searched relative to the current directory, relative to the recipe, and on the Hugging Face hub.
    ``format`` is ``"gguf"``, ``"mlx"`` or ``"safetensors"``. ``quantize`` is a type of ``lbrx.quantize``, such as
    ``"q4_k_m"``, or ``"same"`` for that of the inputs if they are quantized (FP8 and others). Both are done in one
    pass, without intermediate files. The bytes depend on the recipe, the models
    and the ``seed`` only. ``allow_code`` lets the recipe run the Python file that its ``merge_method`` names.
    ``tensors`` is ``"union"`` or ``"intersection"`` for checkpoints of any kind, without regard to their architecture:
    tensors that not all models have are merged from those that have them, or left out. ``stages`` is a directory for
    the results of the recipe's named stages, which are not written otherwise. Methods such as ``regmean`` run the
    models on texts first, layer by layer; ``measuring`` is called for each layer.
    The other options, ``threads``, ``memory``, ``device``, ``cluster``, ``strict``, ``overwrite``, ``restart``,
    ``sync``, ``progress`` and ``planned``, are those of `lbrx.files.output.options.RunOptions`. Call it again with the
    same arguments to resume a run that was stopped.

    >>> import lbrx, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for name, value in (("a", 1.0), ("b", 3.0)):
    ...     lbrx.save(f"{folder}/{name}.safetensors", {"w": lbrx.full((4,), value, "bf16")})
    >>> recipe = f'''
    ... merge_method: linear
    ... models:
    ...   - {{model: {folder}/a.safetensors, parameters: {{weight: 3}}}}
    ...   - {{model: {folder}/b.safetensors, parameters: {{weight: 1}}}}
    ... '''
    >>> merge(recipe, f"{folder}/out").tensors
    1
    >>> float(lbrx.open(f"{folder}/out")["w"].max())
    1.5
    """
    plan_call = partial(
        plan_output_of_merge,
        recipe,
        out,
        format=format,
        quantize=quantize,
        max_shard_bytes=max_shard_bytes,
        seed=seed,
        allow_code=allow_code,
        tensors=tensors,
        strict=options.get("strict", False),
        overwrite=options.get("overwrite", False),
    )
    if stages is not None:
        write_stages(recipe, Path(stages), plan_call.keywords, options, measuring)
    inputs = inputs_root(Path(out))  # found before the directory is replaced, which may be the current one
    result = plan_and_execute(plan_call, options, measuring=measuring)
    remove_tree(inputs)
    return result


def write_stages(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    directory: Path,
    keywords: Mapping[str, Any],
    options: RunKeywords,
    measuring: CountCallback | None = None,
) -> None:
    """Write the result of each named stage but the last one; stages that this recipe has written are kept."""
    own: RunKeywords = {**options}
    own.pop("planned", None)
    names = ("max_shard_bytes", "seed", "allow_code", "tensors", "strict")
    named = {name: keywords[name] for name in names}
    for name in _stage_names(recipe, keywords["allow_code"]):
        if "/" in name or name in (".", ".."):
            raise UsageError(f"the stage {name!r} cannot be the name of a directory; expected a name without slashes")
        target = directory / name
        plan = read_and_plan(recipe, target, stage=name, **named)
        identity = plan.identity({file.name: file.read() for file in plan.side_files})
        label = digest(json.dumps(identity, sort_keys=True).encode())
        known = _written_stages(directory)
        is_there = target.exists()
        if is_there and known.get(name) == label:
            continue
        if not is_there:  # an interrupted run is finished by the next one
            _note_stages(directory, {**known, name: label})
        elif own.get("overwrite"):
            _note_stages(directory, {each: known[each] for each in known if each != name})
        call = partial(plan_output_of_merge, recipe, target, stage=name, overwrite=keywords["overwrite"], **named)
        plan_and_execute(call, own, measuring=measuring)
        remove_tree(inputs_root(target))
        _note_stages(directory, {**known, name: label})


def _written_stages(directory: Path) -> dict[str, str]:
    """Return what each stage in a directory was made from, as a digest."""
    path = directory / _STAGES_NAME
    return {name: str(label) for name, label in read_json(path).items()} if path.is_file() else {}


def _note_stages(directory: Path, labels: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / _STAGES_NAME, json.dumps(labels, sort_keys=True).encode())


def _stage_names(recipe: str | os.PathLike[str] | Mapping[str, Any], allow_code: bool) -> list[str]:
    recipes, _, _ = _read(recipe, allow_code, strict=False)
    last = last_recipe(recipes)
    return [each.name for each in recipes if each is not last and each.name is not None]


def read_and_plan(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    allow_code: bool = False,
    tensors: str | None = None,
    strict: bool = False,
    stage: str | None = None,
) -> Plan:
    """The plan of a recipe's file or text, or of one of its stages; see ``merge``."""
    limit_bytes = shard_limit(max_shard_bytes)
    if tensors is not None and tensors not in SELECTIONS:
        raise UsageError(f"tensors is {tensors!r}; expected one of {', '.join(SELECTIONS)}")
    recipes, text, directory = _read(recipe, allow_code, strict)
    if stage is not None:
        recipes = _needed_for(stage, recipes)
    restore_replaced(Staging(Path(out)))  # it may be one of the inputs
    return plan_merge(
        recipes,
        out,
        recipe_text=text,
        directory=directory,
        max_shard_bytes=limit_bytes,
        seed=seed,
        allow_code=allow_code,
        tensors=tensors,
    )


def _read(
    recipe: str | os.PathLike[str] | Mapping[str, Any], allow_code: bool, strict: bool
) -> tuple[Sequence[Recipe], str, Path]:
    """The recipes in a file or text, the text, and where their models may be."""
    if isinstance(recipe, Mapping):
        recipe = json.dumps(recipe, default=os.fspath, ensure_ascii=False)
    if isinstance(recipe, str) and any(mark in recipe for mark in "\n{"):
        lookup = method_lookup(allow_code=allow_code)
        return parse_recipes(recipe, source="<recipe>", lookup=lookup, strict=strict), recipe, Path()
    path = Path(recipe)
    lookup = method_lookup(path.parent, allow_code=allow_code)
    recipes = load_recipes(path, lookup=lookup, strict=strict)
    return recipes, path.read_text(encoding="utf-8-sig"), path.parent


def _needed_for(stage: str, recipes: Sequence[Recipe]) -> list[Recipe]:
    """A stage and the stages that it uses, in their order."""
    by_name = {recipe.name: recipe for recipe in recipes}
    needed: set[str | None] = set()
    waiting: list[str | None] = [stage]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += by_name[name].uses
    return [recipe for recipe in recipes if recipe.name in needed]


def plan_output_of_merge(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    quantize: str | None = None,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    allow_code: bool = False,
    tensors: str | None = None,
    strict: bool = False,
    stage: str | None = None,
    overwrite: bool = False,
    measuring: CountCallback | None = None,
) -> OutputPlan:
    """What ``merge`` writes for these arguments; inputs of models are measured now if the method needs them."""
    plan = read_and_plan(
        recipe,
        out,
        max_shard_bytes=max_shard_bytes,
        seed=seed,
        allow_code=allow_code,
        tensors=tensors,
        strict=strict,
        stage=stage,
    )
    written = in_output_format(plan, format=format, quantize=quantize, max_shard_bytes=max_shard_bytes)
    return with_inputs(plan, written, overwrite, measuring)


def with_inputs(plan: Plan, written: OutputPlan, overwrite: bool, measuring: CountCallback | None) -> OutputPlan:
    """The plan of what is written, after measuring the inputs of models if the merge needs them."""
    if _needs_inputs(plan):
        from lbrx.jobs.merge.measuring import measure_inputs

        staging = staging_of(written)
        if not staging.journal.exists():
            staging.check_target(overwrite)  # before the long part
        measure_inputs(plan, measuring)
    return written


def check_texts(plan: Plan) -> None:
    """Raise if the models of a plan cannot be run on their texts, for methods that need it."""
    if _needs_inputs(plan):
        from lbrx.jobs.merge.measuring import check_inputs

        check_inputs(plan)


def _needs_inputs(plan: Plan) -> bool:
    return any(stage.inputs is not None for stage in stages_of(plan.stage))


def in_output_format(
    plan: Plan, *, format: str | None, quantize: str | None, max_shard_bytes: int | str | None
) -> OutputPlan:
    """The plan of a merge, or that of its result in another format."""
    if format is None and quantize is None and plan.out.suffix != ".gguf":
        return plan
    from lbrx.jobs.merge.other_formats import is_plain_merge, plan_in_format

    if is_plain_merge(plan.out, format, quantize):
        return plan
    return plan_in_format(plan, format=format, quantize=quantize, max_shard_bytes=max_shard_bytes)
