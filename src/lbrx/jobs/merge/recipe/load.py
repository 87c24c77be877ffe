"""A recipe file or text, read and checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lbrx.errors import FileError, UsageError, nearest
from lbrx.files.formats.header import GGUF_MAGIC
from lbrx.jobs.merge.methods import Lookup, method_spec
from lbrx.jobs.merge.recipe.checks import check_method
from lbrx.jobs.merge.recipe.reading import ModelRef
from lbrx.jobs.merge.recipe.schema import ModelToken, Recipe
from lbrx.jobs.merge.recipe.structure import read_recipe
from lbrx.jobs.merge.recipe.yaml_lines import MAX_RECIPE_BYTES, RecipeError, RecipeLine, check_size, parse_documents


def load_recipes(
    path: str | os.PathLike[str], *, lookup: Lookup = method_spec, strict: bool = False
) -> tuple[Recipe, ...]:
    """The recipes of a YAML file, checked, each after the ones whose results it uses.

    ``lookup`` gives a method's description by name. ``strict`` makes settings without effect an error. No model is
    opened.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "recipe.yml")
    ...     _ = path.write_text("{merge_method: passthrough, models: [{model: models/a}]}")
    ...     [recipe.method for recipe in load_recipes(path)]
    ['passthrough']
    """
    return parse_recipes(recipe_text(path), source=os.fspath(path), lookup=lookup, strict=strict)


def parse_recipes(
    text: str, *, source: str = "recipe.yml", lookup: Lookup = method_spec, strict: bool = False
) -> tuple[Recipe, ...]:
    """The recipes of a YAML text; ``source`` is the name that errors begin with.

    >>> (recipe,) = parse_recipes("{merge_method: linear, models: [{model: a, parameters: {weight: 1}}]}")
    >>> recipe.method, recipe.modules["*"].slices[0].sources[0].parameters["weight"].constant
    ('linear', 1)
    """
    documents = parse_documents(text, source)
    if not documents:
        raise RecipeLine(source, 1).error("the file is empty; expected a recipe")
    recipes = [_checked(read_recipe(document), lookup) for document in documents]
    if strict:
        raise_ignored([warning for recipe in recipes for warning in recipe.warnings])
    return order_stages(recipes)


def raise_ignored(warnings: Sequence[str]) -> None:
    """Raise an error for the first setting without effect, because ``strict`` was given."""
    if warnings:
        raise UsageError(f"{warnings[0]}; without --strict this is a warning")


def _checked(recipe: Recipe, lookup: Lookup) -> Recipe:
    _check_tokens(recipe)
    try:
        spec = lookup(recipe.method)
    except UsageError as error:
        raise recipe.method_location.error(str(error)) from error
    return recipe if spec is None else replace(recipe, warnings=(*recipe.warnings, *check_method(recipe, spec)))


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


def order_stages(recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """The recipes with ``uses`` filled in, each after the ones it uses, otherwise in the order of the file.

    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = '''
    ... {merge_method: passthrough, models: [{model: first}]}
    ... ---
    ... {name: first, merge_method: passthrough, models: [{model: models/a}]}
    ... '''
    >>> [(recipe.name, recipe.uses) for recipe in parse_recipes(text)]
    [('first', ()), (None, ('first',))]
    """
    _check_names(recipes)
    names = tuple(recipe.name for recipe in recipes if recipe.name is not None)
    waiting = [replace(recipe, uses=_used_stages(recipe, names)) for recipe in recipes]
    ordered: list[Recipe] = []
    while waiting:
        done = {recipe.name for recipe in ordered}
        ready = next((recipe for recipe in waiting if done.issuperset(recipe.uses)), None)
        if ready is None:
            raise _cycle(waiting)
        ordered.append(ready)
        waiting.remove(ready)
    return tuple(ordered)


def _check_names(recipes: Sequence[Recipe]) -> None:
    lines: dict[str | None, int] = {}
    for recipe in recipes:
        if recipe.name in lines:
            if recipe.name is None:
                problem = f"only one recipe of a file may be without a 'name'; the first is on line {lines[None]}"
            else:
                problem = f"two recipes have the name {recipe.name!r}; the first is on line {lines[recipe.name]}"
            raise recipe.location.error(problem)
        lines[recipe.name] = recipe.location.line


def _used_stages(recipe: Recipe, stages: tuple[str, ...]) -> tuple[str, ...]:
    used: dict[str, None] = {}
    for model, location in _references(recipe):
        if model.path in stages:
            if model.revision is not None:
                raise location.error(
                    f"{model.path!r} is a stage of this file, which has no revision {model.revision!r}"
                )
            used[model.path] = None
        else:
            _reject_misspelling(model, location, stages, "stage")
    tokenizer = recipe.tokenizer
    if tokenizer is not None and isinstance(tokenizer.source, ModelRef) and tokenizer.source.path not in stages:
        _reject_misspelling(tokenizer.source, tokenizer.location, ("union", "base"), "tokenizer source")
    return tuple(used)


def _references(recipe: Recipe) -> Iterator[tuple[ModelRef, RecipeLine]]:
    for module in recipe.modules.values():
        for part in module.slices:
            for source in part.sources:
                yield source.model, source.location
            if part.base_model is not None:
                yield part.base_model, part.location
    if recipe.base_model is not None:
        yield recipe.base_model, recipe.base_location
    if recipe.tokenizer is not None:
        for model in recipe.tokenizer.models():
            yield model, recipe.tokenizer.location


def _reject_misspelling(model: ModelRef, location: RecipeLine, known: tuple[str, ...], noun: str) -> None:
    """Raise an error for a bare name that is nothing on disk and nearly one of the known names."""
    hint = nearest(model.path, known)
    is_bare_name = not any(letter in model.path for letter in "/\\.~")
    if hint and is_bare_name and not os.path.exists(model.path):
        raise location.error(f"unknown {noun} {model.path!r}{hint}")


def _cycle(waiting: Sequence[Recipe]) -> RecipeError:
    """An error that walks the cycle among recipes of which each waits for another."""
    by_name = {recipe.name: recipe for recipe in waiting}
    walked: list[str] = []
    name = next(name for recipe in waiting for name in recipe.uses if name in by_name)
    while name not in walked:
        walked.append(name)
        name = next(used for used in by_name[name].uses if used in by_name)
    cycle = [*walked[walked.index(name) :], name]
    return by_name[name].location.error(f"the stages need each other: {' -> '.join(cycle)}; expected no cycle")


def recipe_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a recipe file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "recipe.yml")
    ...     _ = path.write_text("merge_method: linear")
    ...     recipe_text(path)
    'merge_method: linear'
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_RECIPE_BYTES + 1)
    except IsADirectoryError as error:
        raise FileError(f"{name}: is a directory; expected a recipe (a YAML file)") from error
    except OSError as error:
        raise FileError(f"{name}: the recipe cannot be read: {error.strerror}") from error
    if content.startswith(GGUF_MAGIC) or _is_safetensors(content):
        raise FileError(f"{name}: is a model; expected a recipe (a YAML file)")
    check_size(len(content), name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeLine(name, line).error("the recipe is not UTF-8 text") from error


def _is_safetensors(content: bytes) -> bool:
    """Whether a file begins with the length of a JSON header; text has larger numbers there."""
    return content[8:9] == b"{" and content[5:8] == bytes(3)
