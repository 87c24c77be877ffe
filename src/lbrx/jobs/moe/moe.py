"""Writing a mixture, as every output is written: streamed, journalled, and renamed when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.merge.recipe import raise_ignored
from lbrx.jobs.moe.mixture import MoePlan, plan_moe
from lbrx.jobs.moe.recipe import load_moe_recipe, parse_moe_recipe


@takes_run_options
def moe(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Make a mixture of experts from dense models, as a recipe in mergekit-moe's YAML says.

    ``recipe`` is the path of a file, or a dictionary with the same keys. ``seed`` is for random gates and noise.
    The other options are those of `lbrx.merge`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from lbrx.demo.models import demo_models
    >>> models, folder = demo_models(), Path(tempfile.mkdtemp())
    >>> experts = f"[{{source_model: {models.prose}}}, {{source_model: {models.code}}}]"
    >>> recipe = f"{{base_model: {models.base}, gate_mode: random, experts: {experts}}}"
    >>> _ = (folder / "recipe.yml").write_text(recipe)
    >>> moe(folder / "recipe.yml", folder / "out").tensors > 0
    True
    """
    strict = options.get("strict", False)
    planned = partial(_plan_recipe_output, recipe, out, max_shard_bytes=max_shard_bytes, seed=seed, strict=strict)
    return plan_and_execute(planned, options)


def _plan_recipe_output(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None,
    seed: int,
    strict: bool,
) -> ModelPlan:
    return plan_moe_output(plan_recipe(recipe, seed=seed, strict=strict), out, max_shard_bytes=max_shard_bytes)


def plan_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any], *, seed: int = 0, strict: bool = False) -> MoePlan:
    """Read a recipe and plan its mixture. ``strict`` makes settings without effect an error."""
    if isinstance(recipe, Mapping):
        text, directory = json.dumps(recipe, default=os.fspath, ensure_ascii=False), Path()
        parsed = parse_moe_recipe(text, "<recipe>")
    else:
        (parsed, text), directory = load_moe_recipe(recipe), Path(recipe).parent
    if strict:
        raise_ignored(parsed.warnings)
    return plan_moe(parsed, recipe_text=text, directory=directory, seed=seed)


@takes_run_options
def write_moe(
    plan: MoePlan,
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Write a mixture into a directory. Memory does not grow with the models."""
    return plan_and_execute(partial(plan_moe_output, plan, out, max_shard_bytes=max_shard_bytes), options)


def plan_moe_output(
    plan: MoePlan, out: str | os.PathLike[str], *, max_shard_bytes: int | str | None = None
) -> ModelPlan:
    """What ``write_moe`` writes: the files of a mixture, and how each tensor is made."""
    target = Path(out)
    restore_replaced(Staging(target))
    contents = Contents(
        "safetensors",
        tuple(PlannedTensor.of(name, tensor) for name, tensor in plan.tensors.items()),
        config=plan.config,
        side_files=plan.side_files,
        warnings=plan.warnings,
        sources=tuple(header for model in plan.models for header in model.files),
    )
    limit_bytes = shard_limit(max_shard_bytes)
    settings = {"recipe": plan.recipe_text, "seed": plan.seed}
    return plan_output(contents, target, max_shard_bytes=limit_bytes, settings_identity=settings)
