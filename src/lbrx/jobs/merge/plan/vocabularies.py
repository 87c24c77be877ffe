"""The vocabulary of a stage: which tokenizer its output has, and what that changes besides the embeddings' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.recipe import ModelRef, Recipe

if TYPE_CHECKING:
    from lbrx.jobs.merge.vocabulary import ModelVocabulary, VocabularyPlan
    from lbrx.models.tokenizers.tokenizer_file import TokenizerFile

_SPECIAL_IDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "decoder_start_token_id",
)


def tokenizer_donor(recipe: Recipe) -> ModelRef:
    """The model whose tokenizer the output's is, or begins with."""
    spec = recipe.tokenizer
    return spec.source if spec is not None and isinstance(spec.source, ModelRef) else recipe.donor


def stage_vocabulary(
    recipe: Recipe, models: Mapping[ModelRef, InputModel], tokenizer_model: InputModel
) -> VocabularyPlan | None:
    """The vocabulary that a recipe asks for, None if its models keep their rows as they are."""
    spec = recipe.tokenizer
    if spec is None:
        return None
    from lbrx.jobs.merge.vocabulary import plan_vocabulary

    return plan_vocabulary(
        spec,
        [_vocabulary_of(recipe, model) for model in models.values()],
        base=recipe.base_model,
        tokenizer_model=None if tokenizer_model.ref in models else _vocabulary_of(recipe, tokenizer_model),
    )


def _vocabulary_of(recipe: Recipe, model: InputModel) -> ModelVocabulary:
    names = model.architecture.vocabulary_rows(model.config, model.infos)
    rows = [model.infos[name].shape[0] for name in names if name in model.infos]
    if not rows:
        location = recipe.tokenizer.location if recipe.tokenizer else recipe.location
        raise location.error(
            f"the embedding of {model.label} is not known, so that its vocabulary cannot be changed; "
            f"expected a model of a known architecture, with a config.json"
        )
    from lbrx.jobs.merge.vocabulary import ModelVocabulary

    return ModelVocabulary(model.ref, _tokenizer_of(model), min(rows))


def _tokenizer_of(model: InputModel) -> TokenizerFile | None:
    made = made_vocabulary(model)
    if made is not None:
        return made.tokenizer
    from lbrx.models.tokenizers.any_tokenizer import read_any_tokenizer

    return None if model.directory is None else read_any_tokenizer(model.directory)


def made_vocabulary(model: InputModel) -> VocabularyPlan | None:
    """The vocabulary that an earlier stage made, if the model is the result of one that did."""
    if model.stage is None:
        return None
    return model.stage.vocabulary or made_vocabulary(model.stage.tokenizer_model)


def with_vocabulary(jobs: Sequence[Job], vocabulary: VocabularyPlan | None) -> list[Job]:
    """The jobs, embeddings and heads with as many rows as the vocabulary has."""
    if vocabulary is None:
        return list(jobs)
    return [
        replace(job, shape=(vocabulary.size, *job.shape[1:])) if job.is_vocabulary and job.shape else job
        for job in jobs
    ]


def with_special_ids(
    config: Mapping[str, Any] | None, recipe: Recipe, tokenizer_model: InputModel
) -> dict[str, Any] | None:
    """The config with the ids of special tokens of the model whose tokenizer the output has."""
    if config is None or recipe.tokenizer is None or tokenizer_model.ref == recipe.donor:
        return None if config is None else dict(config)
    ids = {key: tokenizer_model.config[key] for key in _SPECIAL_IDS if key in tokenizer_model.config}
    text = config.get("text_config")
    nested = {"text_config": text | {key: ids[key] for key in ids if key in text}} if isinstance(text, dict) else {}
    return {**config, **ids, **nested}


def row_digest_parts(stage: StagePlan) -> list[bytes]:
    """What the rows of embeddings depend on, those of earlier stages included."""
    parts = [part for model in stage.models if model.stage is not None for part in row_digest_parts(model.stage)]
    if stage.vocabulary is not None:
        parts += [numbers.tobytes() for numbers in stage.vocabulary.row_numbers]
        parts.append(repr(stage.vocabulary.overrides).encode())
    return parts
