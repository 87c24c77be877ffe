"""``lbrx.merge``: a recipe in, a merged model out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import OutputPlan, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.merge.methods import method_lookup
from lbrx.jobs.merge.plan import Plan, plan_merge
from lbrx.jobs.merge.recipe import load_recipes, parse_recipes


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
        strict=options.get("strict", False),
    )
    return plan_and_execute(plan_call, options)


def read_and_plan(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    allow_code: bool = False,
    strict: bool = False,
) -> Plan:
    """The plan of a recipe's file or text; see ``merge``."""
    limit_bytes = shard_limit(max_shard_bytes)
    if isinstance(recipe, Mapping):
        recipe = json.dumps(recipe, default=os.fspath, ensure_ascii=False)
    if isinstance(recipe, str) and any(mark in recipe for mark in "\n{"):
        directory, text = Path(), recipe
        recipes = parse_recipes(recipe, source="<recipe>", lookup=method_lookup(allow_code=allow_code), strict=strict)
    else:
        path = Path(recipe)
        directory = path.parent
        recipes = load_recipes(path, lookup=method_lookup(directory, allow_code=allow_code), strict=strict)
        text = path.read_text(encoding="utf-8-sig")
    restore_replaced(Staging(Path(out)))  # it may be one of the inputs
    return plan_merge(
        recipes,
        out,
        recipe_text=text,
        directory=directory,
        max_shard_bytes=limit_bytes,
        seed=seed,
        allow_code=allow_code,
    )


def plan_output_of_merge(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    quantize: str | None = None,
    max_shard_bytes: int | str | None = None,
    seed: int = 0,
    allow_code: bool = False,
    strict: bool = False,
) -> OutputPlan:
    """What ``merge`` writes for these arguments."""
    plan = read_and_plan(recipe, out, max_shard_bytes=max_shard_bytes, seed=seed, allow_code=allow_code, strict=strict)
    return in_output_format(plan, format=format, quantize=quantize, max_shard_bytes=max_shard_bytes)


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
