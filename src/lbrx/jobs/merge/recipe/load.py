"""A recipe file or text, read and checked as a whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lbrx.errors import FileError, UsageError
from lbrx.jobs.merge.recipe.checks import check_method
from lbrx.jobs.merge.recipe.errors import RecipeLine
from lbrx.jobs.merge.recipe.method_specs import method_spec
from lbrx.jobs.merge.recipe.parameters import Lookup
from lbrx.jobs.merge.recipe.references import ModelRef
from lbrx.jobs.merge.recipe.schema import ModelToken, Recipe
from lbrx.jobs.merge.recipe.stages import order_stages
from lbrx.jobs.merge.recipe.structure import read_recipe
from lbrx.jobs.merge.recipe.yaml_lines import MAX_RECIPE_BYTES, check_size, parse_documents


def load_recipes(path: str | os.PathLike[str], *, lookup: Lookup = method_spec) -> tuple[Recipe, ...]:
    """The recipes of a YAML file, checked, each after the ones whose results it uses.

    ``lookup`` gives a method's description by name. No model is opened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "recipe.yml")
    ...     _ = path.write_text("{merge_method: passthrough, models: [{model: models/a}]}")
    ...     [recipe.method for recipe in load_recipes(path)]
    ['passthrough']
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_RECIPE_BYTES + 1)
    except OSError as error:
        raise FileError(f"{os.fspath(path)}: the recipe cannot be read: {error.strerror}") from error
    check_size(len(content), os.fspath(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeLine(os.fspath(path), line).error("the recipe is not UTF-8 text") from error
    return parse_recipes(text, source=os.fspath(path), lookup=lookup)


def parse_recipes(text: str, *, source: str = "recipe.yml", lookup: Lookup = method_spec) -> tuple[Recipe, ...]:
    """The recipes of a YAML text; ``source`` is the name that errors begin with.

    >>> (recipe,) = parse_recipes("{merge_method: linear, models: [{model: a, parameters: {weight: 1}}]}")
    >>> recipe.method, recipe.modules["*"].slices[0].sources[0].parameters["weight"].constant
    ('linear', 1)
    """
    documents = parse_documents(text, source)
    if not documents:
        raise RecipeLine(source, 1).error("the file is empty; expected a recipe")
    return order_stages([_checked(read_recipe(document), lookup) for document in documents])


def _checked(recipe: Recipe, lookup: Lookup) -> Recipe:
    _check_tokens(recipe)
    try:
        spec = lookup(recipe.method)
    except UsageError as error:
        raise recipe.method_location.error(str(error)) from error
    return recipe if spec is None else replace(recipe, warnings=check_method(recipe, spec))


def _check_tokens(recipe: Recipe) -> None:
    """Embeddings can only be taken from models that are merged."""
    if recipe.tokenizer is None:
        return
    for token, spec in recipe.tokenizer.tokens.items():
        model = spec.source.model if isinstance(spec.source, ModelToken) else spec.source
        if isinstance(model, ModelRef) and model not in recipe.models:
            known = ", ".join(str(known) for known in recipe.models)
            raise spec.location.error(
                f"token {token!r} takes its embedding from {str(model)!r}, which is not merged; expected one of {known}"
            )
