"""What keeps models from being merged, found in their headers and configs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import LbrxError, UsageError
from lbrx.files.formats.strict_json import read_json, reading
from lbrx.files.output.sentence_modules import is_module_weight, sentence_modules
from lbrx.jobs.merge.plan.outline import Outline
from lbrx.jobs.merge.plan.records import InputModel, Job
from lbrx.jobs.merge.recipe import ModelRef, Recipe
from lbrx.models.architectures import AUTOMATIC, automatic, check_names, check_shapes
from lbrx.models.architectures.config import HEAD_DIM, Config, text_section
from lbrx.models.architectures.stacked_config import described_layers
from lbrx.models.architectures.table import flat

_LISTED_PROBLEMS = 3
# Settings that shapes do not show; the names in a group mean the same.
_COMPARED_SETTINGS = (
    ("num_attention_heads", "n_head", "num_heads"),
    ("num_key_value_heads",),
    ("head_dim",),
    ("hidden_act", "hidden_activation", "activation_function"),
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps"),
    ("rotary_pct",),
    ("rotary_emb_base",),
)
# Those whose defaults are not known for all families: compared if both models have a value.
_COMPARED_VALUES = (
    "attention_multiplier",
    "attn_logit_softcapping",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "norm_topk_prob",
    "num_experts_per_tok",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "routed_scaling_factor",
    "scoring_func",
    "swiglu_limit",
)
_ROPE_SECTIONS = ("rope_parameters", "rope_scaling")
_ROPE_VALUES = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor")
_ROPE_KEYS = (*_ROPE_SECTIONS, *_ROPE_VALUES)
_HEAD_DEFAULTS = {"num_key_value_heads": "num_attention_heads", "head_dim": HEAD_DIM}
# Keys of a config.json with a meaning that stacking changes.
_POSITION_KEYS = ("attention_types", "hidden_size_per_layer_input", "moe_layer_end_index", "num_kv_shared_layers")
# Of unknown families such as Gemma 3n: the size of the input of a layer, and the tensors that have the inputs of all.
_LAYER_INPUTS, _LAYER_INPUT_TENSORS = "hidden_size_per_layer_input", ("embed_tokens_per_layer.", "per_layer_model_proj")
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt")


def raise_problems(recipe: Recipe, problems: Sequence[str]) -> None:
    """One error for all problems, which names the first few."""
    if not problems:
        return
    unique = list(dict.fromkeys(problems))
    listed = "; ".join(unique[:_LISTED_PROBLEMS])
    more = f"; and {len(unique) - _LISTED_PROBLEMS} more" if len(unique) > _LISTED_PROBLEMS else ""
    raise UsageError(f"{recipe.location.source}: the models cannot be merged: {listed}{more}")


def with_common_architecture(recipe: Recipe, models: Mapping[ModelRef, InputModel]) -> dict[ModelRef, InputModel]:
    """The models. Those without a config are read like the donor. Different architectures are an error.

    If the architecture of the donor is unknown, only the names of the tensors are compared.
    """
    donor = models[recipe.donor]
    recognized: dict[ModelRef, InputModel] = {}
    problems = []
    for ref, model in models.items():
        if model.architecture is donor.architecture or model.architecture.name == donor.architecture.name == AUTOMATIC:
            recognized[ref] = model
        elif not donor.config:
            recognized[ref] = replace(model, architecture=automatic(model.infos, model.config))
        elif _has_equal_tensors(model, donor):
            recognized[ref] = replace(model, architecture=donor.architecture)
        elif not model.config:
            recognized[ref] = replace(model, architecture=donor.architecture, config=donor.config)
        else:
            problems.append(
                f"the architecture of {model.label} is {_architecture_text(model)}, "
                f"but that of {donor.label} is {_architecture_text(donor)}"
            )
    raise_problems(recipe, problems)
    return recognized


def _has_equal_tensors(model: InputModel, donor: InputModel) -> bool:
    """Whether models of two architectures, such as Llama and Mistral, have tensors of the same names and shapes."""
    shapes = model.header.shapes
    return (
        AUTOMATIC not in (model.architecture.name, donor.architecture.name)
        and shapes == donor.header.shapes
        and not list(check_names(model.architecture, model.config, shapes.keys()))
    )


def differing_architectures(donor: InputModel, models: Sequence[InputModel]) -> Iterator[str]:
    """A warning for each model of another architecture with the donor's tensors."""
    own = donor.config.get("model_type")
    for model in models:
        other = model.config.get("model_type")
        if other != own and own is not None and other is not None:
            yield f"{model.label} is a {other!r} model and is merged as a {own!r} one, because its tensors are equal"


def without_architecture(recipe: Recipe, models: Mapping[ModelRef, InputModel]) -> dict[ModelRef, InputModel]:
    """The models as sets of named tensors: any checkpoints, whatever their configs say."""
    if not recipe.whole_model or recipe.tokenizer is not None:
        raise recipe.location.error("the union or intersection of tensors needs whole 'models' and keeps vocabularies")
    return {ref: replace(model, architecture=flat(model.infos)) for ref, model in models.items()}


def _architecture_text(model: InputModel) -> str:
    if model.architecture.name == AUTOMATIC:
        return f"unknown (model_type: {model.config.get('model_type')!r})"
    return repr(model.architecture.name)


def model_problems(models: Mapping[ModelRef, InputModel]) -> Iterator[str]:
    """Models that are not what their configs say, or that cannot be computed with."""
    for model in models.values():
        if model.stage is not None:
            continue
        names, shapes = model.header.shapes.keys(), model.header.shapes
        for problem in check_names(model.architecture, model.config, names):
            yield f"{model.label}: {problem}"
        for problem in check_shapes(model.architecture, model.config, shapes):
            yield f"{model.label}: {problem}"


def layer_problems(recipe: Recipe, outline: Outline) -> Iterator[str]:
    """Layer ranges beyond a model's layers, and whole models with different numbers of layers."""
    for part in outline.language_module.slices:
        counts = {source.model: outline.roles[source.model].model.layer_count for source in part.sources}
        for source in part.sources:
            if source.layer_range is not None and source.layer_range[1] > counts[source.model]:
                raise source.location.error(
                    f"'layer_range' {list(source.layer_range)} ends beyond the {counts[source.model]} layers of "
                    f"model {str(source.model)!r}"
                )
        if part.layers is not None:
            continue
        donor = recipe.donor if recipe.donor in counts else part.sources[0].model
        for model, count in counts.items():
            if count != counts[donor]:
                yield f"{model} has {count} layers, but {donor} has {counts[donor]}"
    if _moves_layers(outline):
        yield from _split_among_layers(outline.donor.model)


def _moves_layers(outline: Outline) -> bool:
    """Whether the output has other layers than the donor, or in another order."""
    layers = [layer for _, layer in outline.layer_sources()]
    return not outline.language_module.whole_model and layers != list(range(outline.donor.model.layer_count))


def _split_among_layers(donor: InputModel) -> Iterator[str]:
    """Tensors outside the layers that have a part for each layer, such as the inputs per layer of Gemma 4."""
    key = donor.architecture.layers_key
    for role in donor.architecture.tensors(donor.config, donor.infos):
        is_split = any(key in re.findall(r"\w+", str(size)) for size in role.dimensions or ())
        if donor.architecture.name == AUTOMATIC and text_section(donor.config).get(_LAYER_INPUTS):
            is_split = any(part in role.name for part in _LAYER_INPUT_TENSORS)
        if is_split and role.layer is None and not role.module and role.name in donor.infos:
            yield (
                f"tensor {role.name!r} of {donor.label} has a part for each of {donor.layer_count} layers, "
                "which slices that move layers do not select"
            )


def dropped_tensors(outline: Outline, jobs: Sequence[Job]) -> Iterator[str]:
    """A warning for each model with tensors outside the layers that the output has no place for."""
    made = {job.name for job in jobs}
    for roles in outline.roles.values():
        lost = [role.name for role in roles.outside if roles.in_output(role).name not in made]
        if not outline.language_module.whole_model:
            lost += [role.name for role in roles.predicting]
        present = [name for name in lost if name in roles.model.infos]
        if present:
            yield (
                f"{len(present)} tensors of {roles.model.label} are in no slice and not in the output, "
                f"such as {present[0]!r}"
            )


def undescribed_layers(outline: Outline, jobs: Sequence[Job], config: Mapping[str, Any] | None) -> Iterator[str]:
    """A warning if layers were stacked in an order that config.json cannot describe, so that it may not load."""
    sources = outline.layer_sources()
    donor = outline.donor.model
    if config is None or not _moves_layers(outline):
        return
    for key in _POSITION_KEYS if donor.architecture.name == AUTOMATIC else ():
        if text_section(config).get(key):
            yield f"config.json has {key!r}, which depends on the layers and is not changed: the output may not load"
    names = [job.name for job in jobs]
    if donor.architecture.name != AUTOMATIC:
        shapes = {job.name: job.shape for job in jobs}
        problems = check_names(donor.architecture, config, names) + check_shapes(donor.architecture, config, shapes)
        yield from (f"the output: {problem}" for problem in problems)
        return
    own = _layer_shapes(donor, {name: info.shape for name, info in donor.infos.items()}, donor.layer_count)
    made = _layer_shapes(donor, {job.name: job.shape for job in jobs}, len(sources))
    expected = _expected_layers(own, described_layers(donor.config, len(own)), described_layers(config, len(made)))
    wrong = [layer for layer, shapes in enumerate(made) if expected[layer] not in (None, shapes)]
    if wrong:
        source, number = sources[wrong[0]]
        yield (
            f"{len(wrong)} layers of the output have other tensors than config.json says for their position, such as "
            f"layer {wrong[0]}, which was layer {number} of {source.model}: the output may not load"
        )


def _layer_shapes(model: InputModel, shapes: Mapping[str, tuple[int, ...]], count: int) -> list[dict[str, Any]]:
    """The shapes of each layer's tensors by their names without the number."""
    layers: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, shape in shapes.items():
        layer = model.architecture.layer_of(name)
        if layer is not None and layer < count:
            layers[layer][model.architecture.rename_layer(name, layer, 0)] = shape
    return layers


def _expected_layers(
    own: Sequence[dict[str, Any]], own_texts: Sequence[tuple[Any, ...]], texts: Sequence[tuple[Any, ...]]
) -> list[dict[str, Any] | None]:
    """The tensors that each layer should have: by the lists of the config if they decide it, else by its position."""
    by_text = dict(zip(own_texts, own, strict=True))
    if all(by_text[text] == shapes for text, shapes in zip(own_texts, own, strict=True)):
        return [by_text.get(text) for text in texts]
    return [own[min(layer, len(own) - 1)] for layer in range(len(texts))]


def copied_tensors(models: Sequence[InputModel], jobs: Sequence[Job]) -> Iterator[str]:
    """A warning if there are tensors that are copied because they are not floating-point."""
    copied = [job for job in jobs if job.is_copy and not job.dtype.is_float]
    if copied and len(models) > 1:
        first = copied[0]
        yield (
            f"{len(copied)} tensors of whole numbers are copied and not merged, such as {first.name!r} "
            f"({first.dtype}) from {models[first.inputs[0].model].label}"
        )


def copied_modules(donor: InputModel, models: Sequence[InputModel]) -> Iterator[str]:
    """A warning if modules of sentence-transformers have weights, which are not merged."""
    weights = [file.name for file in sentence_modules(donor.directory) if is_module_weight(file.name)]
    if weights and len(models) > 1:
        yield f"{weights[0]} is copied from {donor.label} and not merged"


def differing_settings(donor: InputModel, models: Sequence[InputModel]) -> Iterator[str]:
    """A warning for each setting that makes weights mean something else than the donor's, whose config is written."""
    for model in models:
        if model.config == donor.config or not model.config or not donor.config:
            continue
        own, expected = (_config(each) for each in (model, donor))
        pairs = {keys[0]: (_value(own, *keys), _value(expected, *keys)) for keys in _COMPARED_SETTINGS}
        if any(_value(own, key) != _value(expected, key) for key in _ROPE_KEYS):
            pairs |= _rope_settings(own, expected)
        values = {key: (_value(own, key), _value(expected, key)) for key in _COMPARED_VALUES}
        pairs |= {key: pair for key, pair in values.items() if None not in pair}
        pairs["sliding_window"] = _window(own), _window(expected)
        for key, (value, donor_value) in pairs.items():
            if value != donor_value:
                yield (
                    f"{key} is {_value_text(donor_value)} in {donor.label}, but {_value_text(value)} in {model.label}; "
                    f"the output has that of {donor.label}"
                )


def _config(model: InputModel) -> Config:
    return Config(model.config, {**_HEAD_DEFAULTS, **model.architecture.defaults})


def _value(config: Config, *keys: str) -> Any:
    """A value or its default; None if there is none or it cannot be computed."""
    try:
        return config.get(*keys)
    except LbrxError:
        return None


def _window(config: Config) -> Any:
    return None if _value(config, "use_sliding_window") is False else _value(config, "sliding_window")


def _value_text(value: Any) -> str:
    return "not set" if value is None else f"{value!r:.80}"


def _rope_settings(own: Config, expected: Config) -> dict[str, tuple[Any, Any]]:
    """Pairs of rope settings, whichever form of config.json has them."""
    from lbrx.models.architectures.rope import FULL_ATTENTION, SLIDING_ATTENTION, rope_section

    try:
        ropes = [[rope_section(each, name) for name in (FULL_ATTENTION, SLIDING_ATTENTION)] for each in (own, expected)]
    except LbrxError:
        return {key: (_value(own, key), _value(expected, key)) for key in _ROPE_KEYS}
    keys = dict.fromkeys((*_ROPE_VALUES, "rope_type"))
    for config in (own, expected):
        sections = [_value(config, key) for key in _ROPE_SECTIONS]
        sections += [section.get(FULL_ATTENTION) for section in sections if isinstance(section, Mapping)]
        keys |= {key: None for section in sections if isinstance(section, Mapping) for key in section}
    pairs = {key: (ropes[0][0].get(key), ropes[1][0].get(key)) for key in keys if key not in ("type", FULL_ATTENTION)}
    local_thetas = ropes[0][1].get("rope_theta"), ropes[1][1].get("rope_theta")
    return pairs | ({"rope_theta of sliding attention": local_thetas} if SLIDING_ATTENTION in keys else {})


def differing_tokenizers(donor: InputModel, models: Sequence[InputModel]) -> Iterator[str]:
    """A warning for each model whose tokens are not those of the donor, so that rows of embeddings are mixed up."""
    for model in models:
        if model.directory is None or donor.directory is None or model.directory == donor.directory:
            continue
        for name in _TOKENIZER_NAMES:
            own, expected = model.directory / name, donor.directory / name
            if own.is_file() and expected.is_file():
                difference = _token_difference(own, expected)
                if difference:
                    yield (
                        f"{name} of {donor.label} and {model.label} differ: {difference}; "
                        f"the output has that of {donor.label}"
                    )
                break  # the files that follow say the same


def _token_difference(own: Path, expected: Path) -> str | None:
    """How the tokens of two tokenizers differ, None if they do not."""
    if own.stat().st_size == expected.stat().st_size and own.read_bytes() == expected.read_bytes():
        return None
    if own.name != "tokenizer.json":
        return "their bytes are not the same"
    try:
        with reading(own):
            tokens, expected_tokens = _tokens(read_json(own)), _tokens(read_json(expected))
    except LbrxError as error:
        return f"their tokens cannot be compared ({error})"
    numbers = [
        number for number in tokens.keys() | expected_tokens if tokens.get(number) != expected_tokens.get(number)
    ]
    if not numbers:
        return None
    first = min(numbers)
    return (
        f"{len(numbers)} ids have other tokens, such as {first}, which is {_value_text(expected_tokens.get(first))} "
        f"and {_value_text(tokens.get(first))}"
    )


def _tokens(tokenizer: Mapping[str, Any] | None) -> dict[int, str]:
    """The tokens of a tokenizer.json by their ids."""
    model = (tokenizer or {}).get("model") or {}
    vocabulary = model.get("vocab") or {}
    numbered = vocabulary.items() if isinstance(vocabulary, Mapping) else ((t[0], i) for i, t in enumerate(vocabulary))
    added = {int(token["id"]): str(token["content"]) for token in (tokenizer or {}).get("added_tokens") or ()}
    return {int(number): str(token) for token, number in numbered} | added
