"""Chat templates: those that recipes can name, and the most common one among the models of a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.errors import FileError
from lbrx.files.formats.model_files import TOKENIZER_CONFIG_NAME
from lbrx.files.formats.strict_json import read_json

CONFIG_NAME = TOKENIZER_CONFIG_NAME
TEMPLATE_NAME = "chat_template.jinja"
OLD_TEMPLATE_NAME = "chat_template.json"

_CHATML = r"""
{%- for message in messages %}
    {{- '<|im_start|>' ~ message['role'] ~ '\n' ~ message['content'] ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""

_LLAMA3 = r"""
{%- for message in messages %}
    {%- if loop.first %}
        {{- bos_token }}
    {%- endif %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' }}
    {{- (message['content'] | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

_MISTRAL = r"""
{%- set turns = namespace(system='', count=0) %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' and loop.first %}
        {%- set turns.system = message['content'] ~ '\n\n' %}
    {%- elif message['role'] != ('assistant' if turns.count % 2 else 'user') %}
        {{- raise_exception('user and assistant must take turns, after at most one system message') }}
    {%- else %}
        {%- if message['role'] == 'user' %}
            {{- ' [INST] ' ~ turns.system ~ message['content'] ~ ' [/INST]' }}
            {%- set turns.system = '' %}
        {%- else %}
            {{- ' ' ~ message['content'] ~ eos_token }}
        {%- endif %}
        {%- set turns.count = turns.count + 1 %}
    {%- endif %}
{%- endfor %}"""

_ALPACA = r"""
{%- set titles = {'user': '### Instruction:\n', 'user_context': '### Input:\n', 'assistant': '### Response:\n'} %}
{%- for message in messages %}
    {%- if message['role'] in titles or message['role'] == 'system' %}
        {{- titles.get(message['role'], '') ~ (message['content'] | trim) }}
        {%- if add_generation_prompt or not loop.last %}
            {{- '\n\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- titles['assistant'] }}
{%- endif %}"""

_EXAONE = r"""
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '[|system|][|endofturn|]\n' }}
    {%- endif %}
    {{- '[|' ~ message['role'] ~ '|]' ~ message['content'] }}
    {{- '\n' if message['role'] == 'user' else '[|endofturn|]\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[|assistant|]' }}
{%- endif %}"""

TEMPLATES: Mapping[str, str] = {
    "alpaca": _ALPACA.strip(),
    "chatml": _CHATML.strip(),
    "exaone": _EXAONE.strip(),
    "llama3": _LLAMA3.strip(),
    "mistral": _MISTRAL.strip(),
}


def find_template(wanted: str, directories: Sequence[Path]) -> str | None:
    """Return the chat template that a recipe asks for: ``auto``, a known name, or a template itself.

    ``auto`` selects the most common template of the directories, or None if none has one.

    >>> find_template("{{ messages[0]['content'] }}", [])
    "{{ messages[0]['content'] }}"
    >>> "<|im_start|>" in find_template("chatml", [])
    True
    """
    if wanted == "auto":
        return most_common_template(directories)
    return TEMPLATES.get(wanted, wanted)


def most_common_template(directories: Sequence[Path]) -> str | None:
    """Return the most common template of the model directories, the first one on ties; None if none has one."""
    templates = [template for directory in directories if (template := read_template(directory))]
    return Counter(templates).most_common(1)[0][0] if templates else None


def read_template(directory: Path) -> str | None:
    """Return the chat template of a model directory: its own file, or a key of the tokenizer settings."""
    path = directory / TEMPLATE_NAME
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read as text: {error}") from error
    for name in (CONFIG_NAME, OLD_TEMPLATE_NAME):
        template = _default_template(read_json(directory / name).get("chat_template"))
        if template:
            return template.strip()
    return None


def _default_template(value: Any) -> str | None:
    """Return the template itself, or the default of several: ``{name: template}`` or ``[{name, template}]``."""
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
        value = {entry["name"]: entry.get("template") for entry in entries}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) else None
