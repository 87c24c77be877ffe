"""The small files of the output: config.json, tokenizer, generation settings, the shards' index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.errors import UsageError
from lbrx.files.formats.header import FileLayout
from lbrx.files.formats.model_files import CONFIG_NAME, INDEX_NAME, OTHER_FILES, TOKENIZER_CONFIG_NAME, TOKENIZER_FILES
from lbrx.files.formats.shards import index_json
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.plan import SideFile
from lbrx.files.output.sentence_modules import sentence_modules
from lbrx.files.remote.paths import without_secrets
from lbrx.jobs.merge.plan.outline import Outline
from lbrx.jobs.merge.plan.records import InputModel, Job, StagePlan
from lbrx.jobs.merge.plan.vocabularies import made_vocabulary
from lbrx.jobs.merge.recipe import ModelRef, Recipe
from lbrx.models.architectures import stacked_config


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
        raise recipe.location.error(str(error)) from error
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


def side_files(stage: StagePlan, donor: InputModel, layouts: Sequence[FileLayout]) -> tuple[SideFile, ...]:
    """All small files of the output except the model card and the checksums."""
    files = []
    if stage.config is not None:
        files.append(SideFile(CONFIG_NAME, (json.dumps(stage.config, indent=2, ensure_ascii=False) + "\n").encode()))
    others = {file.name: file for file in _copied(donor.directory, OTHER_FILES)}
    if stage.recipe.tokenizer is not None:  # the ids of special tokens are those of the tokenizer
        others |= {file.name: file for file in _copied(stage.tokenizer_model.directory, ("generation_config.json",))}
    files += others.values()
    files += sentence_modules(donor.directory)
    files += _tokenizer_files(stage)
    if len(layouts) > 1:
        files.append(SideFile(INDEX_NAME, index_json(layouts)))
    return tuple(files)


def _copied(directory: Path | None, names: Sequence[str]) -> Iterator[SideFile]:
    for name in names if directory is not None else ():
        assert directory is not None
        path = directory / name
        if path.is_file():
            yield SideFile(name, source=path)


def _tokenizer_files(stage: StagePlan) -> Iterator[SideFile]:
    """The files of the model that the tokenizer comes from, changed by the vocabulary and the chat template."""
    directory = stage.tokenizer_model.directory
    if directory is None:
        return
    changes = _tokenizer_changes(stage, directory)
    copies = {file.name: file for file in _copied(directory, TOKENIZER_FILES)}
    for name in TOKENIZER_FILES:
        content = changes.get(name)
        if content is not None:
            yield SideFile(name, content)
        elif name in copies and name not in changes:
            yield copies[name]


def _tokenizer_changes(stage: StagePlan, directory: Path) -> Mapping[str, bytes | None]:
    wanted = stage.recipe.chat_template
    vocabulary = stage.vocabulary or made_vocabulary(stage.tokenizer_model)
    if wanted is None and vocabulary is None:
        read_json(directory / TOKENIZER_CONFIG_NAME)  # it is copied, so that a broken one is an error
        return {}
    from lbrx.jobs.merge.vocabulary import tokenizer_changes
    from lbrx.models.tokenizers.chat_templates import find_template

    directories = [model.directory for model in stage.models if model.directory is not None]
    template = None if wanted is None else find_template(wanted, directories)
    return tokenizer_changes(directory, vocabulary=vocabulary, template=template)


CARD_NAME = "README.md"


def model_card(recipes: Sequence[Recipe], last: Recipe, recipe_text: str, repositories: Sequence[str] = ()) -> str:
    """The text of the card, the same for the same recipe: it carries no date and no machine.

    ``repositories`` are the models that came from the hub, which the card links to.

    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = "{merge_method: passthrough, models: [{model: owner/name}]}"
    >>> recipes = parse_recipes(text)
    >>> print(model_card(recipes, recipes[0], text, ["owner/name"]))  # doctest: +ELLIPSIS
    ---
    base_model:
    - "owner/name"
    base_model_relation: merge
    library_name: transformers
    tags:
    - merge
    - lbrx
    ---
    ...
    """
    models = _models(recipes)
    lines = [*_front_matter(repositories), "", "# Merged model", ""]
    lines += [f"Merged with lbrx by the method {_code(last.method)} from:", ""]
    lines += [f"- {_code(model)}" for model in models]
    if last.base_model is not None:
        lines += ["", f"The base model is {_code(last.base_model)}."]
    recipe_text = without_secrets(recipe_text)
    fence = _fence(recipe_text)
    lines += ["", "## Recipe", "", f"{fence}yaml", recipe_text.strip("\n"), fence]
    return "\n".join(lines) + "\n"


def _models(recipes: Sequence[Recipe]) -> list[ModelRef]:
    """The models of all stages that are not stages themselves, once each."""
    stages = {recipe.name for recipe in recipes}
    return list(dict.fromkeys(model for recipe in recipes for model in recipe.models if model.path not in stages))


def _front_matter(repositories: Sequence[str]) -> Iterator[str]:
    """What the hub reads."""
    yield "---"
    if repositories:
        yield "base_model:"
        yield from (f"- {json.dumps(repository)}" for repository in dict.fromkeys(repositories))
        yield "base_model_relation: merge"
    yield from ("library_name: transformers", "tags:", "- merge", "- lbrx", "---")


def _code(value: object) -> str:
    """A name or path as code in a line of Markdown, whatever characters it has.

    >>> _code("a/b"), _code("a`b")
    ('`a/b`', '`` a`b ``')
    """
    text = "".join(letter if letter.isprintable() else " " for letter in without_secrets(str(value)))
    if "`" not in text:
        return f"`{text}`"
    quotes = "``"
    while quotes in text:
        quotes += "`"
    return f"{quotes} {text} {quotes}"


def _fence(text: str) -> str:
    """A row of backquotes that the text does not have."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence
