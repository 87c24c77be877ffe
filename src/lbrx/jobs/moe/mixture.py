"""The plan of a mixture: every tensor as an expression over the dense models, its config and its small files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats.model_files import OTHER_FILES, TOKENIZER_FILES
from lbrx.files.output.plan import SideFile
from lbrx.jobs.merge.plan.models import ModelOpener
from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.jobs.moe.config import lost_windows, moe_config
from lbrx.jobs.moe.gates import Gates
from lbrx.jobs.moe.layouts import MATRICES, MoeLayout, choose_layout
from lbrx.jobs.moe.recipe import PROMPTED_GATES, Expert, MoeRecipe
from lbrx.models.architectures import Family, Naming, TensorRole, check_names, check_shapes
from lbrx.tensors.creation import full, normal
from lbrx.tensors.dtype import DType
from lbrx.tensors.tensor import Tensor

_NAMING = Naming("model.")
_LISTED_PROBLEMS = 3


@dataclass(frozen=True, eq=False)
class MoePlan:
    """A whole mixture: what ``write_moe`` writes."""

    layout: MoeLayout
    models: tuple[InputModel, ...]
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]
    side_files: tuple[SideFile, ...]
    warnings: tuple[str, ...]
    recipe_text: str
    seed: int


def plan_moe(
    recipe: MoeRecipe, *, recipe_text: str = "", directory: str | os.PathLike[str] = ".", seed: int = 0
) -> MoePlan:
    """Decide everything about a mixture. Headers and configs are read; of the weights only the prompts' embeddings.

    ``directory`` is where models are looked for if they are not in the current one. ``seed`` is for gates and noise.

    >>> import tempfile
    >>> from lbrx.demo import models
    >>> from lbrx.jobs.moe import parse_moe_recipe
    >>> recipe = "{base_model: a, gate_mode: random, experts: [{source_model: a}, {source_model: a}]}"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = models.write_model(Path(folder) / "a", models.base_tensors())
    ...     plan = plan_moe(parse_moe_recipe(recipe), directory=folder)
    >>> plan.config["model_type"], plan.tensors["model.layers.0.block_sparse_moe.gate.weight"].shape[0]
    ('mixtral', 2)
    """
    opener = ModelOpener((Path(), Path(directory)))
    models = {ref: opener.open(ref) for ref in recipe.models}
    base = models[recipe.base_model]
    layout = choose_layout(recipe, base.architecture.name)
    _raise_problems(recipe, [problem for model in models.values() for problem in _model_problems(model, base)])
    _raise_problems(recipe, list(_misplaced(layout, recipe, models)))
    embedding_name = base.find("model.embed_tokens.weight")
    assert embedding_name is not None  # the checks of the base demand it
    gates = Gates(recipe, base, embedding_name, seed, has_shared=layout.gates_shared)
    tensors = dict(_Mixer(recipe, layout, models, gates, seed).tensors())
    config = moe_config(recipe, layout, base)
    _check_output(recipe, layout.family, config, tensors)
    warnings = (*_recipe_warnings(recipe), *lost_windows(base), *gates.warnings)
    side_files = _side_files(recipe, base, recipe_text)
    return MoePlan(layout, tuple(models.values()), tensors, config, side_files, warnings, recipe_text, seed)


def _raise_problems(recipe: MoeRecipe, problems: list[str]) -> None:
    if problems:
        listed = "; ".join(problems[:_LISTED_PROBLEMS])
        more = f"; and {len(problems) - _LISTED_PROBLEMS} more" if len(problems) > _LISTED_PROBLEMS else ""
        raise UsageError(f"{recipe.location.source}: the mixture cannot be made: {listed}{more}")


def _model_problems(model: InputModel, base: InputModel) -> Iterator[str]:
    """What keeps a model from being an expert beside the base: its type, or tensors that are not as they should be."""
    if model.architecture is not base.architecture:
        yield (
            f"the architecture of {model.label} is {model.architecture.name!r}, "
            f"but that of {base.label} is {base.architecture.name!r}"
        )
        return
    if model.layer_count != base.layer_count:
        yield f"{model.label} has {model.layer_count} layers, but {base.label} has {base.layer_count}"
        return
    for problem in (
        *check_names(model.architecture, model.config, model.header.shapes),
        *check_shapes(model.architecture, model.config, model.header.shapes),
    ):
        yield f"{model.label}: {problem}"
    for name in _matrix_names(base):
        own, expected = model.find(name), base.find(name)
        if own is None or expected is None:
            continue  # the checks above tell
        info, wanted = model.infos[own], base.infos[expected].shape
        if info.dtype is None or not info.dtype.is_float:
            yield f"tensor {own!r} of {model.label} is {info.type_name}; expected a floating type"
        elif info.shape != wanted:
            yield f"tensor {own!r} has shape {info.shape} in {model.label}, but {wanted} in {base.label}"


def _matrix_names(base: InputModel) -> Iterator[str]:
    for layer in range(base.layer_count):
        for matrix in MATRICES:
            yield f"model.layers.{layer}.mlp.{matrix}.weight"


def _misplaced(layout: MoeLayout, recipe: MoeRecipe, models: Mapping[ModelRef, InputModel]) -> Iterator[str]:
    """Tensors that the layout has no place for, and that would be lost without a word."""
    allowed = {f"self_attn.{part}.bias" for part in layout.attention_biases}
    allowed |= {f"mlp.{matrix}.weight" for matrix in MATRICES}
    for ref, model in models.items():
        parts = ("mlp.", "self_attn.") if ref == recipe.base_model else ("mlp.",)
        for role in _roles(model):
            name = role.name.partition(f"layers.{role.layer}.")[2]
            is_lost = name.startswith("mlp.") or name.endswith("_proj.bias")
            if name.startswith(parts) and is_lost and name not in allowed:
                yield f"tensor {role.name!r} of {model.label} has no place in a {layout.name} model"


def _roles(model: InputModel) -> list[TensorRole]:
    """The tensors that a model holds, in order."""
    roles = model.architecture.tensors(model.config, model.infos)
    return [role for role in roles if role.name in model.infos]


class _Mixer:
    """Makes the tensors of the output, before the layers, layer by layer, after the layers."""

    def __init__(
        self, recipe: MoeRecipe, layout: MoeLayout, models: Mapping[ModelRef, InputModel], gates: Gates, seed: int
    ) -> None:
        self._recipe = recipe
        self._layout = layout
        self._models = models
        self._base = models[recipe.base_model]
        self._gates = gates
        self._seed = seed

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        layers_done: set[int] = set()
        for role in _roles(self._base):
            name = self._base.architecture.translate(role.name, _NAMING)
            if role.layer is not None and role.layer not in layers_done:
                layers_done.add(role.layer)
                yield from self._mixture(role.layer)
            if role.layer is None or not name.startswith(f"model.layers.{role.layer}.mlp."):
                yield name, self._cast(self._base.tensors[role.name])

    def _mixture(self, layer: int) -> Iterator[tuple[str, Tensor]]:
        """The gates and experts of a layer, and the attention biases that the base does not have."""
        layout, prefix = self._layout, f"model.layers.{layer}."
        dtype = self._dtype_of(f"{prefix}mlp.{MATRICES[0]}.weight")
        gate = layout.name_of("ffn_gate_inp.weight", layer)
        yield gate, self._gates.routed(gate).to(dtype)
        for number, expert in enumerate(self._recipe.experts):
            yield from self._expert(expert, layer, layout.names_of_matrices("exps", layer, number))
        if layout.gates_shared:
            gate = layout.name_of("ffn_gate_inp_shexp.weight", layer)
            yield gate, self._gates.shared(gate).to(dtype)
        for expert in self._recipe.shared_experts:
            yield from self._expert(expert, layer, layout.names_of_matrices("shexp", layer))
        for part in layout.attention_biases:
            if self._base.find(f"{prefix}self_attn.{part}.bias") is None:
                weight = self._base.find(f"{prefix}self_attn.{part}.weight")
                assert weight is not None
                rows = self._base.infos[weight].shape[0]
                yield f"{prefix}self_attn.{part}.bias", full((rows,), 0.0, self._dtype_of(weight))

    def _expert(self, expert: Expert, layer: int, names: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
        model = self._models[expert.model]
        for matrix in MATRICES:
            dense_name = f"model.layers.{layer}.mlp.{matrix}.weight"
            own = model.find(dense_name)
            assert own is not None
            name = names[matrix]
            value = model.tensors[own]
            if expert.noise_scale:
                value = value + normal(value.shape, self._seed, name) * expert.noise_scale
            if matrix == MATRICES[-1] and expert.residual_scale != 1:
                value = value * expert.residual_scale
            yield name, value.to(self._dtype_of(dense_name))

    def _dtype_of(self, name: str) -> DType:
        own = self._base.find(name)
        dtype = None if own is None else self._base.infos[own].dtype
        assert dtype is not None
        return self._recipe.dtype or dtype

    def _cast(self, tensor: Tensor) -> Tensor:
        dtype = self._recipe.dtype
        return tensor if dtype is None or not tensor.dtype.is_float else tensor.to(dtype)


def _check_output(
    recipe: MoeRecipe, architecture: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """The output is checked as an input would be."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    problems = [*check_names(architecture, config, shapes), *check_shapes(architecture, config, shapes)]
    _raise_problems(recipe, problems)


def _recipe_warnings(recipe: MoeRecipe) -> Iterator[str]:
    yield from recipe.warnings
    experts = recipe.experts
    has_prompts = any(expert.positive_prompts or expert.negative_prompts for expert in experts)
    if recipe.gate_mode not in PROMPTED_GATES and has_prompts:
        yield f"{recipe.gate_location}: the prompts are not used by the gate mode {recipe.gate_mode!r}"
    is_noisy = any(expert.noise_scale for expert in experts)
    if len({expert.model for expert in experts}) == 1 < len(experts) and not is_noisy:
        yield f"{recipe.location}: all experts are the same model, which is of use only if the mixture is trained"
    if len(experts) & (len(experts) - 1):
        yield f"{recipe.location}: {len(experts)} experts are not a power of two, which some programs require"


def _side_files(recipe: MoeRecipe, base: InputModel, recipe_text: str) -> tuple[SideFile, ...]:
    copies = [
        SideFile(name, source=base.directory / name)
        for name in (*OTHER_FILES, *TOKENIZER_FILES)
        if base.directory is not None and (base.directory / name).is_file()
    ]
    return (*copies, SideFile("README.md", _card(recipe, recipe_text).encode()))


def _card(recipe: MoeRecipe, recipe_text: str) -> str:
    fence = "```"
    while fence in recipe_text:
        fence += "`"
    lines = ["---", "library_name: transformers", "tags:", "- moe", "- lbrx", "---", "", "# Mixture of experts", ""]
    lines += [
        f"Made with [lbrx](https://pypi.org/project/lbrx/) on the base `{recipe.base_model}` from the experts:",
        "",
    ]
    lines += [f"- `{expert.model}`" for expert in (*recipe.experts, *recipe.shared_experts)]
    lines += ["", "## Recipe", "", f"{fence}yaml", recipe_text.rstrip("\n"), fence]
    return "\n".join(lines) + "\n"
