"""Chat templates as text (`chat_rendering` runs them): files of a directory, and keys of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.formats.source import is_directory
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME, OLD_TEMPLATE_NAME, TEMPLATE_NAME, TEMPLATES

TEMPLATE_KEY = "tokenizer.chat_template"
NAMES_KEY = "tokenizer.chat_templates"
MORE_TEMPLATES_NAME = "additional_chat_templates"
DEFAULT = "default"


def read_templates(directory: Path) -> dict[str, str]:
    """Return the chat templates of a directory by name: from template files, else from the tokenizer settings."""
    template_path = directory / TEMPLATE_NAME
    if template_path.is_file():
        more = sorted((directory / MORE_TEMPLATES_NAME).glob("*.jinja"))
        return {DEFAULT: _text(template_path), **{path.stem: _text(path) for path in more}}
    for name in (CONFIG_NAME, OLD_TEMPLATE_NAME):
        templates = _named(read_json(directory / name).get("chat_template"))
        if templates:
            return templates
    return {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error


def _named(value: Any) -> dict[str, str]:
    """Return templates by name, from a template, ``{name: template}`` or ``[{"name": ..., "template": ...}]``."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        value = {entry["name"]: entry.get("template") for entry in entries}
    if not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if isinstance(name, str) and isinstance(text, str)}


def template_keys(templates: Mapping[str, str]) -> dict[str, Any]:
    """Return the key-values of a GGUF file for these templates.

    >>> sorted(template_keys({"default": "{{ a }}", "tool use": "{{ b }}"}))
    ['tokenizer.chat_template', 'tokenizer.chat_template.tooluse', 'tokenizer.chat_templates']
    """
    others = {re.sub(r"[^A-Za-z0-9_-]", "", name): text for name, text in templates.items() if name != DEFAULT}
    others.pop("", None)
    keys: dict[str, Any] = {}
    if DEFAULT in templates:
        keys[TEMPLATE_KEY] = Typed(templates[DEFAULT], "str")
    if others:
        keys[NAMES_KEY] = Typed(list(others), "array[str]")
        keys |= {f"{TEMPLATE_KEY}.{name}": Typed(text, "str") for name, text in others.items()}
    return keys


def templates_of_keys(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of a GGUF file by name.

    >>> templates_of_keys({"tokenizer.chat_template": "{{ a }}"})
    {'default': '{{ a }}'}
    """
    templates = {name: metadata.get(f"{TEMPLATE_KEY}.{name}") for name in metadata.get(NAMES_KEY) or ()}
    templates = {DEFAULT: metadata.get(TEMPLATE_KEY), **templates}
    return {name: text for name, text in templates.items() if isinstance(text, str)}


def model_templates(path: Path) -> dict[str, str]:
    """Return the chat templates of a model directory or GGUF file by name."""
    templates = read_templates(path) if is_directory(path) else {}
    if templates or (is_directory(path) and not any(child.suffix == ".gguf" for child in path.iterdir())):
        return templates
    return templates_of_keys(open_checkpoint(path).metadata)


def chosen_template(path: Path, wanted: str | None = None) -> str:
    """Return the chat template to use for a model.

    ``wanted`` is a file, a name among the model's templates, a known name such as ``chatml``, or a template itself.
    Without it, this is the model's default.
    """
    templates = model_templates(path)
    if wanted is None:
        if not templates:
            raise UsageError(
                f"{path}: has no chat template, so it is probably not made for chats; name one with --template, "
                f"or `template` in Python: {', '.join(TEMPLATES)}, or a file"
            )
        return templates.get(DEFAULT) or next(iter(templates.values()))
    found = templates.get(wanted) or TEMPLATES.get(wanted)
    if found is not None or "{{" in wanted or "{%" in wanted:
        return found or wanted
    if not Path(wanted).is_file():
        known = ", ".join(dict.fromkeys([*templates, *TEMPLATES]))
        raise UsageError(f"there is no chat template {wanted!r}; expected a file, or one of {known}")
    return _text(Path(wanted))
