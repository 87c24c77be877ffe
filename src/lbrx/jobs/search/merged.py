"""Write the merged model of the best recipe that a search found."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lbrx.base.system import remove_tree
from lbrx.files.output.plan import OutputPlan
from lbrx.files.output.run import plan_and_execute
from lbrx.jobs.merge.merge import in_output_format, with_inputs
from lbrx.jobs.merge.methods import method_lookup
from lbrx.jobs.merge.plan import plan_merge
from lbrx.jobs.merge.plan.plan import inputs_root
from lbrx.jobs.merge.recipe import parse_recipes
from lbrx.jobs.quantize.same_scheme import SAME
from lbrx.jobs.search.search import SearchResult


def merge_best(
    result: SearchResult, directory: Path, *, quantize: str | None = None, seed: int = 0, allow_code: bool = False
) -> Path:
    """Merge the best recipe into the directory of the search, and return the path.

    ``directory`` is where the models of the recipe are searched besides the current one.
    """
    is_gguf = quantize not in (None, SAME)
    out = result.out / (f"merged-{quantize}.gguf" if is_gguf else "merged")
    call = partial(_plan, result.recipe, out, directory, quantize, seed, allow_code)
    plan_and_execute(call, {"overwrite": True})
    remove_tree(inputs_root(out))
    return out


def _plan(recipe: str, out: Path, directory: Path, quantize: str | None, seed: int, allow_code: bool) -> OutputPlan:
    lookup = method_lookup(directory, allow_code=allow_code)
    recipes = parse_recipes(recipe, source="best.yml", lookup=lookup)
    merge = plan_merge(recipes, out, recipe_text=recipe, directory=directory, seed=seed, allow_code=allow_code)
    written = in_output_format(merge, format=None, quantize=quantize, max_shard_bytes=None)
    return with_inputs(merge, written, True, None)
