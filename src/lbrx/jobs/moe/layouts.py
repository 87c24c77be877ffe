"""The layouts that a mixture can be written in, as data."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.moe.recipe import MoeRecipe
from lbrx.models.architectures import Family
from lbrx.models.architectures.table import load_family

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""The feed-forward matrices of the dense models; the last one writes back into the residual stream."""


@dataclass(frozen=True)
class MoeLayout:
    """A family of mixtures, and the dense models that it can be built from."""

    name: str
    spellings: tuple[str, ...]  # how recipes call it
    dense_types: tuple[str, ...]

    @property
    def family(self) -> Family:
        return load_family(self.name)

    @property
    def shared_count(self) -> int:
        """How many shared experts the layout has."""
        return int("ffn_gate_inp_shexp.weight" in self.family.by_gguf_name)

    @property
    def attention_biases(self) -> tuple[str, ...]:
        """The projections that must have biases: those of the base, or zeros."""
        biases = {each: self.family.by_gguf_name[f"attn_{each}.bias"] for each in "qkv"}
        return tuple(f"{each}_proj" for each, bias in biases.items() if self.family.needs_by_default(bias))

    def name_of(self, gguf_name: str, layer: int, expert: int | None = None) -> str:
        """The name of a tensor that GGUF calls ``gguf_name``.

        >>> LAYOUTS["mixtral"].name_of("ffn_up_exps.weight", 3, expert=1)
        'model.layers.3.block_sparse_moe.experts.1.w3.weight'
        """
        return self.family.namings[0].expand(self.family.by_gguf_name[gguf_name].name, layer, expert)

    def names_of_matrices(self, suffix: str, layer: int, expert: int | None = None) -> dict[str, str]:
        """For each of MATRICES its name in an expert (suffix exps) or in the shared one (shexp)."""
        gguf_names = {each: f"ffn_{each.removesuffix('_proj')}_{suffix}.weight" for each in MATRICES}
        return {each: self.name_of(name, layer, expert) for each, name in gguf_names.items()}


MIXTRAL = MoeLayout("mixtral", ("mixtral",), ("llama", "mistral"))
QWEN2_MOE = MoeLayout("qwen2_moe", ("qwen2_moe", "qwen", "qwen moe", "qwen2"), ("llama", "mistral", "qwen2"))
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
