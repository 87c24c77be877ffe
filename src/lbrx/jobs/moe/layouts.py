"""The layouts that a mixture can be written in, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.moe.recipe import MoeRecipe

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""The feed-forward matrices of the dense models; the last one writes back into the residual stream."""


@dataclass(frozen=True)
class MoeLayout:
    """The names of a mixture's tensors inside of a layer, and which dense models it can be made from."""

    name: str  # its model_type
    class_name: str
    spellings: tuple[str, ...]  # how recipes call it
    dense_types: tuple[str, ...]
    gate: str
    expert: str  # {item} is the expert's number, {matrix} that of its matrices
    matrices: Mapping[str, str] = field(hash=False)  # the dense models' names to the layout's
    attention_biases: tuple[str, ...] = ()  # that the layout demands; those of the base, or zeros
    shared_expert: str | None = None
    shared_gate: str | None = None

    @property
    def shared_count(self) -> int:
        """How many shared experts the layout has."""
        return 0 if self.shared_expert is None else 1


MIXTRAL = MoeLayout(
    "mixtral",
    "MixtralForCausalLM",
    ("mixtral",),
    ("llama", "mistral"),
    gate="block_sparse_moe.gate.weight",
    expert="block_sparse_moe.experts.{item}.{matrix}.weight",
    matrices={"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
)

QWEN2_MOE = MoeLayout(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    ("qwen2_moe", "qwen", "qwen moe", "qwen2"),
    ("llama", "mistral", "qwen2"),
    gate="mlp.gate.weight",
    expert="mlp.experts.{item}.{matrix}.weight",
    matrices={matrix: matrix for matrix in MATRICES},
    attention_biases=("q_proj", "k_proj", "v_proj"),
    shared_expert="mlp.shared_expert.{matrix}.weight",
    shared_gate="mlp.shared_expert_gate.weight",
)

LAYOUTS = {layout.name: layout for layout in (MIXTRAL, QWEN2_MOE)}


def choose_layout(recipe: MoeRecipe, dense_type: str) -> MoeLayout:
    """The layout that a recipe names, or the one that fits its models and its shared experts.

    >>> from lbrx.jobs.moe.recipe import parse_moe_recipe
    >>> recipe = parse_moe_recipe("{base_model: a, gate_mode: random, experts: [{source_model: a}, {source_model: b}]}")
    >>> choose_layout(recipe, "llama").name
    'mixtral'
    """
    shared = len(recipe.shared_experts)
    candidates = list(LAYOUTS.values())
    if recipe.architecture is not None:
        wanted = recipe.architecture.lower()
        candidates = [layout for layout in candidates if wanted in layout.spellings]
        if not candidates:
            raise recipe.location.error(
                f"unknown 'architecture' {recipe.architecture!r} of a mixture; expected one of {', '.join(LAYOUTS)}"
            )
    for layout in candidates:
        if dense_type in layout.dense_types and shared == layout.shared_count:
            return layout
    reasons = "; ".join(
        f"{layout.name} takes {', '.join(layout.dense_types)} models and {layout.shared_count or 'no'} shared experts"
        for layout in candidates
    )
    raise recipe.location.error(
        f"no layout fits {dense_type} models and {shared or 'no'} shared experts; expected another recipe: {reasons}"
    )
