"""A tiny vision-language model, and a language model that fits into it."""

from __future__ import annotations

import json
from pathlib import Path

import lbrx
from support.family_goldens import golden

NAME = "gemma3"


def write_vision_language(folder: Path) -> Path:
    return golden(NAME).write(folder)


def write_language_model(folder: Path, copy: int = 1) -> Path:
    """Write the language model of another copy, with the names of a model without a tower."""
    whole = golden(NAME)
    folder.mkdir(parents=True)
    prefix = "language_model."
    arrays = {name: array for name, array in whole.arrays(copy).items() if name.startswith(prefix)}
    tensors = {name.removeprefix(prefix): lbrx.tensor(array) for name, array in arrays.items()}
    lbrx.save(folder / "model.safetensors", tensors, {"format": "pt"})
    config = {**whole.config["text_config"], "architectures": ["Gemma3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
