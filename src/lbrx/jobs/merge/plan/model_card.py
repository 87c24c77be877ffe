"""The README of a merged model: which models, which method, and the recipe to make it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from lbrx.jobs.merge.recipe import ModelRef, Recipe

CARD_NAME = "README.md"


def model_card(recipes: Sequence[Recipe], last: Recipe, recipe_text: str, repositories: Sequence[str] = ()) -> str:
    """The text of the card, the same for the same recipe: it carries no date and no machine.

    ``repositories`` are the models that came from the hub, which the card links to.

    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = "{merge_method: passthrough, models: [{model: owner/name}]}"
    >>> recipes = parse_recipes(text)
    >>> print(model_card(recipes, recipes[0], text, ["owner/name"]))  # doctest: +ELLIPSIS
    ---
    base_model:
    - "owner/name"
    library_name: transformers
    tags:
    - merge
    - lbrx
    ---
    ...
    """
    models = _models(recipes)
    lines = [*_front_matter(repositories), "", "# Merged model", ""]
    lines += [f"Merged with lbrx by the method `{last.method}` from:", ""]
    lines += [f"- `{model}`" for model in models]
    if last.base_model is not None:
        lines += ["", f"The base model is `{last.base_model}`."]
    fence = _fence(recipe_text)
    lines += ["", "## Recipe", "", f"{fence}yaml", recipe_text.strip("\n"), fence]
    return "\n".join(lines) + "\n"


def _models(recipes: Sequence[Recipe]) -> list[ModelRef]:
    """The models of all stages that are not stages themselves, once each."""
    stages = {recipe.name for recipe in recipes}
    return list(dict.fromkeys(model for recipe in recipes for model in recipe.models if model.path not in stages))


def _front_matter(repositories: Sequence[str]) -> Iterator[str]:
    """What the hub reads."""
    yield "---"
    if repositories:
        yield "base_model:"
        yield from (f"- {json.dumps(repository)}" for repository in dict.fromkeys(repositories))
    yield from ("library_name: transformers", "tags:", "- merge", "- lbrx", "---")


def _fence(text: str) -> str:
    """A row of backquotes that the text does not have."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
