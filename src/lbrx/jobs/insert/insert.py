"""``lbrx.insert``: a vision-language model with another language model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from lbrx.errors import UsageError
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import DEFAULT_SHARD_BYTES, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures import Family, Naming, find_family
from lbrx.models.architectures.config import Config, Values, text_section
from lbrx.models.architectures.rope import rope_section
from lbrx.tensors.dtype import DTYPES

_LISTED_NAMES = 3
# Settings of language models that shapes do not show; the names in a group mean the same.
_SETTINGS = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "sliding_window",
    "num_experts_per_tok",
)


@takes_run_options
def insert(
    language_model: str | os.PathLike[str],
    parent: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Write a vision-language model with the tensors of another language model of the same architecture.

    The tower, the projector, the config and the tokenizer are those of ``parent``. Tensors get the types that they
    have there. The options are those of `lbrx.files.output.options.RunOptions`.

    >>> import lbrx
    >>> from lbrx.demo.models import demo_models
    >>> lbrx.insert(demo_models().base, demo_models().base, "out")
    Traceback (most recent call last):
    lbrx.errors.UsageError: ...: has no tower next to a language model; expected a vision-language model
    """
    plan = partial(plan_insertion, language_model, parent, out, max_shard_bytes=max_shard_bytes)
    return plan_and_execute(plan, options)


def plan_insertion(
    language_model: str | os.PathLike[str],
    parent: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str | None = None,
) -> ModelPlan:
    """Plan an insertion. Reads headers and configs, but no weights."""
    target = Path(out)
    restore_replaced(Staging(target))
    with reading(parent):
        whole = read_contents(Path(parent))
    with reading(language_model):
        text = read_contents(Path(language_model))
    contents = inserted(text, whole, str(language_model), str(parent))
    return plan_output(contents, target, max_shard_bytes=shard_limit(max_shard_bytes, DEFAULT_SHARD_BYTES))


def inserted(text: Contents, whole: Contents, text_label: str, whole_label: str) -> Contents:
    """Return a vision-language model with another language model; no weights are read."""
    if text.format != "safetensors" or whole.format != "safetensors":
        raise UsageError(f"{text_label}, {whole_label}: expected Hugging Face directories")
    if text.config is None or whole.config is None:
        raise UsageError(f"{text_label if text.config is None else whole_label}: has no config.json")
    family = find_family(whole.config)
    names = [tensor.name for tensor in whole.tensors]
    towers = {role.name for role in family.unclaimed(whole.config, names) if role.module}
    if not towers:
        raise UsageError(f"{whole_label}: has no tower next to a language model; expected a vision-language model")
    sources = _renamed(text, family, family.naming(names))
    replaced = [tensor for tensor in whole.tensors if tensor.name not in towers]
    problems = [*_missing(sources, replaced, text, family), *_unknown(sources, replaced, whole, family)]
    problems += _other_shapes(sources, replaced)
    if problems:
        listed = "; ".join(problems[:_LISTED_NAMES])
        more = f"; and {len(problems) - _LISTED_NAMES} more" if len(problems) > _LISTED_NAMES else ""
        raise UsageError(f"{text_label}: is not a language model for {whole_label}: {listed}{more}")
    tensors = tuple(_with_type(sources.get(each.name, each), each) for each in whole.tensors)
    warnings = _differences(text.config, whole.config, text_label, whole_label)
    return replace(whole, tensors=tensors, sources=(*whole.sources, *text.sources), warnings=tuple(warnings))


def _renamed(text: Contents, family: Family, naming: Naming) -> dict[str, PlannedTensor]:
    """Return the tensors of the language model by the names that the vision-language model has."""
    renamed = (tensor.renamed(family.translate(tensor.name, naming)) for tensor in text.tensors)
    return {tensor.name: tensor for tensor in renamed}


def _missing(
    sources: dict[str, PlannedTensor], replaced: Sequence[PlannedTensor], text: Contents, family: Family
) -> Iterator[str]:
    assert text.config is not None
    for tensor in replaced:
        if tensor.name in sources:
            continue
        twin = family.source_name(tensor.name, text.config, sources.keys())
        if twin is None:
            yield f"it has no tensor {tensor.name!r}"
        else:  # the other one of a tied embedding and head
            sources[tensor.name] = sources[twin].renamed(tensor.name)


def _unknown(
    sources: dict[str, PlannedTensor], replaced: Sequence[PlannedTensor], whole: Contents, family: Family
) -> Iterator[str]:
    assert whole.config is not None
    known = {tensor.name for tensor in replaced}
    buffers = {role.name for role in family.tensors(whole.config, [*sources, *known]) if role.is_buffer or role.tied_to}
    for name in sources:
        if name not in known and name not in buffers:
            yield f"there is no tensor for its {name!r}"


def _other_shapes(sources: dict[str, PlannedTensor], replaced: Sequence[PlannedTensor]) -> Iterator[str]:
    for tensor in replaced:
        source = sources.get(tensor.name, tensor)
        if source.shape != tensor.shape:
            yield f"its tensor {tensor.name!r} has shape {source.shape}, expected {tensor.shape}"
        elif not (DTYPES[source.type_name].is_float and DTYPES[tensor.type_name].is_float):
            yield f"its tensor {tensor.name!r} is {source.type_name}, expected floating-point values"


def _with_type(source: PlannedTensor, tensor: PlannedTensor) -> PlannedTensor:
    type_name = tensor.type_name
    return source if source.type_name == type_name else source.mapped(lambda x: x.to(type_name), type_name=type_name)


def _differences(text: Values, whole: Values, text_label: str, whole_label: str) -> Iterator[str]:
    """Yield a warning for each setting of the language models that shapes do not show."""
    own, expected = Config(text), Config(text_section(whole))
    pairs: list[tuple[str, Any, Any]] = [(key, own.get(key), expected.get(key)) for key in _SETTINGS]
    ropes = rope_section(own), rope_section(expected)
    pairs += [(key, *(rope.get(key) for rope in ropes)) for key in ("rope_theta", "rope_type")]
    for key, value, wanted in pairs:
        if value is not None and wanted is not None and value != wanted:
            yield f"{text_label}: {key!r} is {value!r:.60}, but {whole_label} has {wanted!r:.60}, which is kept"
