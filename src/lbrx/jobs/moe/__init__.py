"""Mixtures of experts, made from dense models: recipes, gates, layouts and their writing."""

from lbrx.jobs.moe.layouts import LAYOUTS, MoeLayout
from lbrx.jobs.moe.mixture import MoePlan, plan_moe
from lbrx.jobs.moe.moe import plan_moe_output, write_moe
from lbrx.jobs.moe.recipe import GATE_MODES, Expert, MoeRecipe, load_moe_recipe, parse_moe_recipe

__all__ = [
    "GATE_MODES",
    "LAYOUTS",
    "Expert",
    "MoeLayout",
    "MoePlan",
    "MoeRecipe",
    "load_moe_recipe",
    "parse_moe_recipe",
    "plan_moe",
    "plan_moe_output",
    "write_moe",
]
