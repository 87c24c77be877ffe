"""Recipes: mergekit's YAML language to a frozen, strictly validated ``Recipe``.

``load_recipes`` reads a file, ``resolve_tensor`` says which parameters hold for one tensor. Every mistake
that can be seen without a model is a ``RecipeError`` that begins with the file and the line.
"""

from lbrx.jobs.merge.recipe.checks import check_method
from lbrx.jobs.merge.recipe.load import load_recipes, parse_recipes
from lbrx.jobs.merge.recipe.method_specs import METHOD_SPECS, is_custom_method, method_spec
from lbrx.jobs.merge.recipe.parameters import (
    REQUIRED,
    Lookup,
    MethodParameter,
    MethodSpec,
    TensorParameters,
    Violation,
    base_index,
    resolve,
    resolve_tensor,
)
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
from lbrx.jobs.merge.recipe.values import Branch, Scalar, Value, layer_position
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, RecipeError, RecipeLine

__all__ = [
    "EVERY_MODULE",
    "METHOD_SPECS",
    "REQUIRED",
    "Branch",
    "FrozenMap",
    "Lookup",
    "LoraRef",
    "MethodParameter",
    "MethodSpec",
    "ModelRef",
    "ModelToken",
    "Module",
    "Recipe",
    "RecipeError",
    "RecipeLine",
    "Scalar",
    "Slice",
    "SliceSource",
    "TensorParameters",
    "TokenSpec",
    "TokenizerSpec",
    "Value",
    "Violation",
    "ZeroToken",
    "base_index",
    "check_method",
    "is_custom_method",
    "layer_position",
    "load_recipes",
    "method_spec",
    "parse_recipes",
    "parse_reference",
    "resolve",
    "resolve_tensor",
]
