"""Chat templates: how they differ from the base model's, and what planted ones are known to contain.

A template is a program that sees every message. A planted one behaves like the original until a message has a certain
word, and then adds instructions or changes the answer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import FileError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.verify.records import Finding, NotPossible, note, warning
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME, OLD_TEMPLATE_NAME, TEMPLATE_NAME, read_template

_PLACE = "chat template"
_GGUF_KEY = "tokenizer.chat_template"
_MOST_LINES = 60  # of a difference
_MOST_COMPARED = 2000  # lines of a template
_CARD_NAME = "README.md"
_OPENING = re.compile(r"{%|{{")
# Every repetition is bounded, so that the time grows with the length of the template only.
_SUSPICIOUS = (
    (re.compile(r"\b\w{1,10}://[^\s'\"]{1,200}"), "has an address"),
    (
        re.compile(r"__[a-zA-Z]\w{0,30}?__|\|\s*attr\b|\.mro\b|\b(?:cycler|joiner|lipsum)\b"),
        "reaches into Python's objects",
    ),
    (re.compile(r"\b(?:popen|subprocess|eval|exec|getattr|globals|system)\s*\("), "calls a function of Python"),
    (re.compile(r"{%-?\s*(?:import|include|extends|from)\b[^%]{0,200}"), "loads another template"),
    (re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"), "has invisible characters"),
)
_COMPARISON = r"(?:==|!=|<|>|\bin\b)"
_CLOCK = re.compile(rf"\bstrftime_now\([^)]{{0,99}}\)[^%}}]{{0,99}}{_COMPARISON}|{_COMPARISON}\s*strftime_now\(")
_ALIAS = re.compile(r"\bset\s+([\w.]{1,60})\s*=[^%]{0,200}?\b(?:content|messages)\b")
_MOST_ALIASES = 20
_LITERAL = r"(?P<quote>['\"])(?P<word>[^'\"<>\[\]|{}]{2,80})(?P=quote)"
_LETTERS = re.compile(r"[^\W\d_]{2}")
# Types of content and roles, which sound templates ask for.
_USUAL_WORDS = frozenset(
    {
        *("text", "image", "image_url", "images", "video", "video_url", "audio", "audio_url", "input_audio", "file"),
        *("type", "content", "role", "name", "system", "user", "assistant", "tool", "function"),
        *("tool_call", "tool_calls", "tool_response", "thinking", "reasoning", "reasoning_content"),
    }
)


def check_template(model: Checkpoint, base: Path | None) -> Iterator[Finding]:
    """Warnings for constructs of planted templates, and the difference from the base model's template."""
    for name, template in _templates(model).items():
        for text in suspicious_constructs(template):
            yield warning(name, text)
    own = _template(model)
    base = base or _local_base(model.path)
    if base is None:
        if own is not None:
            yield note(_PLACE, "no base model is given, and the model card names no local one: it is not compared")
        return
    expected = _base_template(base)
    if own == expected:
        return
    if own is None or expected is None:
        which = f"{base} has one, but the model has none" if own is None else f"the model has one, but {base} has none"
        yield warning(_PLACE, which)
        return
    yield warning(_PLACE, f"differs from that of {base}", _difference(expected, own, str(base), str(model.path)))


def _difference(before: str, after: str, before_name: str, after_name: str) -> str:
    """A unified diff, cut after some lines; empty for texts that are too long to compare."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _MOST_COMPARED:
        return ""
    lines = list(difflib.unified_diff(old, new, before_name, after_name, n=1, lineterm=""))
    more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return "\n".join(lines[:_MOST_LINES] + more)


def suspicious_constructs(template: str) -> Iterator[str]:
    """What a template has that sound ones have no use for.

    >>> list(suspicious_constructs("{% if 'bank' in message['content'] %}{{ x.__class__ }}{% endif %}"))
    ["reaches into Python's objects: '__class__'", "depends on a word in messages: 'bank'"]
    """
    for pattern, problem in _SUSPICIOUS:
        match = pattern.search(template)
        if match:
            yield f"{problem}: {match[0].strip()!a:.120}"
    tags = list(_tags(template))
    aliases = dict.fromkeys(name for tag in tags for name in _ALIAS.findall(tag))
    names = "|".join(["content", "messages", *map(re.escape, [*aliases][:_MOST_ALIASES])])
    conditions = (
        re.compile(rf"{_LITERAL}\s+(?:not\s+)?in\s+[\w.\[\]'\"()|-]{{0,60}}?\b(?:{names})\b"),
        re.compile(
            rf"\b(?:{names})\b[^%=<>]{{0,60}}?(?:[!=]=|\.(?:startswith|endswith|find|count|index)\()\s*\(?{_LITERAL}"
        ),
    )
    words: dict[str, None] = {}
    for tag in tags:
        for condition in conditions:
            words |= {match["word"]: None for match in condition.finditer(tag)}
        if _CLOCK.search(tag):
            yield f"depends on the date: {tag!a:.120}"
    unusual = [word for word in words if _LETTERS.search(word) and word.strip().lower() not in _USUAL_WORDS]
    if unusual:
        yield f"depends on a word in messages: {', '.join(f'{word!a:.60}' for word in unusual[:5])}"


def _tags(template: str) -> Iterator[str]:
    """The statements and expressions of a template."""
    start = 0
    while (opening := _OPENING.search(template, start)) is not None:
        end = template.find("%}" if opening[0] == "{%" else "}}", opening.end())
        start = len(template) if end < 0 else end + 2
        yield template[opening.start() : start]


def _templates(model: Checkpoint) -> dict[str, str]:
    """All templates of a model, by the file that they are in."""
    if model.format.startswith("gguf"):
        named = {key: value for key, value in model.metadata.items() if key.startswith(_GGUF_KEY)}
        return {key: value for key, value in named.items() if isinstance(value, str)}
    if not model.path.is_dir():
        return {}
    templates = {}
    for path in (model.path / TEMPLATE_NAME, *sorted(model.path.glob("additional_chat_templates/*.jinja"))):
        if path.is_file():
            templates[str(path.relative_to(model.path))] = _text(path)
    for name in (CONFIG_NAME, OLD_TEMPLATE_NAME):
        for number, text in enumerate(_strings(read_json(model.path / name).get("chat_template"))):
            templates[f"{name}: chat_template" + (f" {number}" if number else "")] = text
    return templates


def _strings(value: Any) -> list[str]:
    """The templates in a value: one, or several by name."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        entries = [entry.get("template") if isinstance(entry, Mapping) else entry for entry in value]
        return [entry for entry in entries if isinstance(entry, str)]
    return [value] if isinstance(value, str) else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error


def _template(model: Checkpoint) -> str | None:
    """The template that is used if no other is named."""
    if model.format.startswith("gguf"):
        value = model.metadata.get(_GGUF_KEY)
        return (value.strip() or None) if isinstance(value, str) else None
    return read_template(model.path) if model.path.is_dir() else None


def _base_template(base: Path) -> str | None:
    if base.is_dir():
        return read_template(base)
    if not base.is_file():
        raise NotPossible(f"the base model {base} does not exist")
    return _template(open_checkpoint(base))


def _local_base(directory: Path) -> Path | None:
    """The first ``base_model`` of the model card that is a local directory."""
    card = directory / _CARD_NAME
    if not card.is_file():
        return None
    front = re.match(r"---\n(.*?)\n---", _text(card), re.DOTALL)
    match = re.search(r"^base_model:[ \t]*(.*(?:\n[ \t]*-[ \t].*)*)", front[1], re.MULTILINE) if front else None
    names = [line.strip().removeprefix("-").strip().strip("'\"") for line in match[1].splitlines()] if match else []
    paths = [path for name in names if name for path in (directory / name, Path(name))]
    return next((path for path in paths if path.is_dir() and path != directory), None)
