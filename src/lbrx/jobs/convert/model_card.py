"""Names, licence and languages of a model: key-values of a GGUF file, and the head of a model card.

The keys of the card are those that llama.cpp's converter reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.files.output.plan import SideFile

CARD_NAME = "README.md"
_FENCE = "---"
_MAX_CARD_BYTES = 1 << 20
_TEXTS = {
    "general.name": "model_name",
    "general.author": "model_author",
    "general.version": "model_version",
    "general.organization": "model_organization",
    "general.finetune": "model_finetune",
    "general.basename": "model_basename",
    "general.description": "model_description",
    "general.license": "license",
    "general.license.name": "license_name",
    "general.license.link": "license_link",
}
_LISTS = {"general.tags": "tags", "general.languages": "language"}


def card_of(metadata: Mapping[str, Any]) -> tuple[SideFile, ...]:
    """A model card with what the key-values of a GGUF file say of the model; none if they say nothing.

    >>> print(card_of({"general.license": "mit", "general.languages": ["en"]})[0].read().decode())
    ---
    license: mit
    language:
    - en
    ---
    <BLANKLINE>
    """
    import yaml

    head: dict[str, Any] = {}
    for key, name in _TEXTS.items():
        if isinstance(metadata.get(key), str):
            head[name] = metadata[key]
    for key, name in _LISTS.items():
        if metadata.get(key) is not None:
            head[name] = [str(item) for item in metadata[key]]
    if not head:
        return ()
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    return (SideFile(CARD_NAME, f"{_FENCE}\n{text}{_FENCE}\n".encode()),)


def card_metadata(directory: Path | None) -> dict[str, Any]:
    """Return the key-values for the head of a model card. Unknown keys are left out.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "README.md").write_text("---\\nlicense: mit\\nlanguage: en\\n---\\n# A model")
    >>> card_metadata(folder)
    {'general.license': 'mit', 'general.languages': ['en']}
    """
    head = _head(directory / CARD_NAME) if directory is not None else {}
    found: dict[str, Any] = {
        key: head[name] for key, name in _TEXTS.items() if isinstance(head.get(name), str) and head[name]
    }
    for key, name in _LISTS.items():
        items = [head[name]] if isinstance(head.get(name), str) else head.get(name)
        if isinstance(items, list) and items and all(isinstance(item, str) for item in items):
            found[key] = items
    return found


def _head(path: Path) -> dict[str, Any]:
    import yaml

    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_CARD_BYTES).decode(errors="replace").splitlines()
        if not lines or lines[0].rstrip() != _FENCE:
            return {}
        end = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE)
        head = yaml.safe_load("\n".join(lines[1:end]))
    except (OSError, StopIteration, yaml.YAMLError, ValueError, RecursionError):  # ValueError: an impossible date
        return {}
    return head if isinstance(head, dict) else {}
