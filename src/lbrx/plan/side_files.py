"""The small files of the output: config.json, tokenizer, generation settings, the shards' index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.architectures import stacked_config
from lbrx.errors import FileError, UsageError
from lbrx.formats.header import FileLayout
from lbrx.formats.shards import index_json
from lbrx.plan.outline import Outline
from lbrx.plan.records import InputModel, Job, SideFile
from lbrx.recipe import CHAT_TEMPLATES, ModelRef, Recipe

# In the order in which the output's directory lists them.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
OTHER_FILES = (
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
)
INDEX_NAME = "model.safetensors.index.json"


def output_config(recipe: Recipe, outline: Outline, jobs: Sequence[Job]) -> dict[str, Any] | None:
    """The config.json of the output, None if the donor has none."""
    donor = outline.donor.model
    if not donor.config:
        return None
    models = [roles.model for roles in outline.roles.values()]
    layer_sources = None
    if not outline.language_module.whole_model:
        index = {model.ref: number for number, model in enumerate(models)}
        layer_sources = [(index[source.model], layer) for source, layer in outline.layer_sources()]
    try:
        config = stacked_config(
            donor.config,
            layer_sources,
            source_configs=[model.config for model in models],
            vocab_size=_changed_vocabulary(donor, jobs),
            dtype=recipe.output_dtype,
            architecture=donor.architecture,
        )
    except UsageError as error:
        raise recipe.place.error(str(error)) from error
    if _is_untied(outline, jobs, models):
        _set_untied(config)
    return config


def _changed_vocabulary(donor: InputModel, jobs: Sequence[Job]) -> int | None:
    """The rows of the output's embedding if the donor's has another number of them."""
    for job in jobs:
        own = donor.find(job.name) if job.is_vocabulary and job.shape else None
        if own is not None and donor.infos[own].shape[0] != job.shape[0]:
            return job.shape[0]
    return None


def _is_untied(outline: Outline, jobs: Sequence[Job], models: Sequence[InputModel]) -> bool:
    """Whether the donor's head is its embedding, but the output's head is made with one that is not."""
    donor, naming = outline.donor.model, outline.donor.naming
    architecture = donor.architecture
    heads = {naming.expand(weight.name) for weight in (*architecture.pre, *architecture.post) if weight.tied_to}
    if not architecture.is_tied(donor.config):
        return False
    makers = [models[source.model] for job in jobs if job.name in heads for source in job.inputs]
    return any(not architecture.is_tied(model.config) for model in makers)


def _set_untied(config: dict[str, Any]) -> None:
    sections = [config, config.get("text_config")]
    holders = [section for section in sections if isinstance(section, dict) and "tie_word_embeddings" in section]
    for section in holders or [config]:
        section["tie_word_embeddings"] = False


def tokenizer_donor(recipe: Recipe) -> ModelRef:
    """The model whose tokenizer the output gets."""
    spec = recipe.tokenizer
    if spec is None:
        return recipe.donor
    if spec.source == "union" or spec.tokens or spec.pad_to_multiple_of is not None:
        raise spec.place.error(
            "vocabularies cannot be merged token by token yet; expected a tokenizer 'source' of 'base' or a model"
        )
    if isinstance(spec.source, ModelRef):
        return spec.source
    if recipe.base_model is None:
        raise spec.place.error("the tokenizer is to be that of the base model, but the recipe has no 'base_model'")
    return recipe.base_model


def side_files(
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    donor: InputModel,
    tokenizer: InputModel,
    layouts: Sequence[FileLayout],
) -> tuple[SideFile, ...]:
    """All small files of the output except the model card and the checksums."""
    files = []
    if config is not None:
        files.append(SideFile("config.json", (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()))
    files += _copied(donor.directory, OTHER_FILES)
    files += _with_template(recipe, list(_copied(tokenizer.directory, TOKENIZER_FILES)))
    if len(layouts) > 1:
        files.append(SideFile(INDEX_NAME, index_json(layouts)))
    return tuple(files)


def _copied(directory: Path | None, names: Sequence[str]) -> Iterator[SideFile]:
    for name in names if directory is not None else ():
        assert directory is not None
        place = directory / name
        if place.is_file():
            yield SideFile(name, source=place)


def _with_template(recipe: Recipe, files: list[SideFile]) -> list[SideFile]:
    """The tokenizer's files with the recipe's chat template, if it gives one."""
    template = recipe.chat_template
    if template is None:
        return files
    if template == "auto" or template in CHAT_TEMPLATES:
        raise recipe.place.error(
            f"the chat template {template!r} cannot be chosen by name yet; expected a Jinja template, or none"
        )
    kept = [file for file in files if not file.name.startswith("chat_template")]
    return [*kept, SideFile("chat_template.jinja", template.encode())]


def read_side_file(file: SideFile) -> bytes:
    """The bytes of a side file."""
    try:
        return file.read()
    except OSError as error:
        raise FileError(f"{file.source}: cannot be read: {error.strerror}") from error
