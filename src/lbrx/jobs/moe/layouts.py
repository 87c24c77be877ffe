"""The layouts that a mixture can be written in, as data."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.moe.recipe import PROMPTED_GATES, MoeRecipe
from lbrx.models.architectures import Family
from lbrx.models.architectures.table import load_family
from lbrx.registry import load

MATRICES = ("gate_proj", "up_proj", "down_proj")
"""The feed-forward matrices of the dense models; the last one writes back into the residual stream."""


@dataclass(frozen=True)
class MoeLayout:
    """A family of mixtures, and the dense models that it can be built from."""

    name: str
    spellings: tuple[str, ...]  # how recipes call it
    dense_types: tuple[str, ...]
    shared_counts: tuple[int, ...]  # how many shared experts it can have
    record: str | None = None  # "module:object" of a family that is not in the registry

    @property
    def family(self) -> Family:
        if self.record is None:
            return load_family(self.name)
        family: Family = load(self.record)
        return family

    @property
    def gates_shared(self) -> bool:
        """Whether the shared expert has a gate."""
        return "ffn_gate_inp_shexp.weight" in self.family.by_gguf_name

    @property
    def attention_biases(self) -> tuple[str, ...]:
        """The projections that must have biases: those of the base, or zeros."""
        biases = {each: self.family.by_gguf_name.get(f"attn_{each}.bias") for each in "qkv"}
        return tuple(f"{each}_proj" for each, bias in biases.items() if bias and self.family.needs_by_default(bias))

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


MIXTRAL = MoeLayout("mixtral", ("mixtral",), ("llama", "mistral"), (0,))
QWEN2_MOE = MoeLayout("qwen2_moe", ("qwen2_moe", "qwen", "qwen moe", "qwen2"), ("llama", "mistral", "qwen2"), (1,))
QWEN3_MOE = MoeLayout("qwen3_moe", ("qwen3_moe", "qwen", "qwen3 moe", "qwen3"), ("qwen3",), (0,))
DEEPSEEK = MoeLayout(
    "deepseek",
    ("deepseek", "deepseek moe", "deepseek_moe"),
    ("llama", "mistral"),
    (0, 1),
    record="lbrx.models.architectures.families.deepseek_moe:DEEPSEEK_MOE",
)
LAYOUTS = {layout.name: layout for layout in (MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK)}


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
    has_prompts = any(expert.positive_prompts or expert.negative_prompts for expert in recipe.shared_experts)
    for layout in candidates:
        lacks_prompts = layout.gates_shared and recipe.gate_mode in PROMPTED_GATES and not has_prompts
        is_gated = not layout.gates_shared and has_prompts
        if dense_type in layout.dense_types and shared in layout.shared_counts and not lacks_prompts and not is_gated:
            return layout
    reasons = "; ".join(map(_described, candidates))
    raise recipe.location.error(
        f"no layout fits {dense_type} models and {shared or 'no'} shared experts; expected another recipe: {reasons}"
    )


def _described(layout: MoeLayout) -> str:
    counts = " or ".join(str(count or "no") for count in layout.shared_counts)
    gated = ", with prompts if the gate mode needs some" if layout.gates_shared else ""
    gated = ", without prompts" if not layout.gates_shared and max(layout.shared_counts) else gated
    return f"{layout.name} takes {', '.join(layout.dense_types)} models and {counts} shared experts{gated}"
