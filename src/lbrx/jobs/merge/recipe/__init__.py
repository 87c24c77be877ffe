"""Recipes: mergekit's YAML language to a frozen, strictly validated ``Recipe``.

``load_recipes`` reads a file, ``resolve_tensor`` says which parameters hold for one tensor. Every mistake
that can be seen without a model is a ``RecipeError`` that begins with the file and the line.
"""

from lbrx.jobs.merge.recipe.checks import check_method
from lbrx.jobs.merge.recipe.load import load_recipes, parse_recipes, raise_ignored
from lbrx.jobs.merge.recipe.parameters import base_index, filters, resolve, resolve_tensor
from lbrx.jobs.merge.recipe.reading import LoraRef, ModelRef, parse_reference
from lbrx.jobs.merge.recipe.schema import (
    EVERY_MODULE,
    ModelToken,
    Module,
    Recipe,
    Slice,
    SliceSource,
    TokenizerSpec,
    TokenSpec,
    ZeroToken,
)
from lbrx.jobs.merge.recipe.values import Branch, Value, layer_position
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, RecipeError, RecipeLine

__all__ = [
    "EVERY_MODULE",
    "Branch",
    "FrozenMap",
    "LoraRef",
    "ModelRef",
    "ModelToken",
    "Module",
    "Recipe",
    "RecipeError",
    "RecipeLine",
    "Slice",
    "SliceSource",
    "TokenSpec",
    "TokenizerSpec",
    "Value",
    "ZeroToken",
    "base_index",
    "check_method",
    "filters",
    "layer_position",
    "load_recipes",
    "parse_recipes",
    "parse_reference",
    "raise_ignored",
    "resolve",
    "resolve_tensor",
]
