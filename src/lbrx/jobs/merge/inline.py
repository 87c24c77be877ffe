"""A recipe from the options of a command: models, a method, and values of its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods import load_method

_PLAIN = re.compile(r"[A-Za-z/][\w./+-]*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def inline_recipe(models: Sequence[str], method: str, base: str | None, values: Mapping[str, str]) -> str:
    """The YAML text of a merge. ``values`` are texts: one value, or several with commas.

    Several values of a parameter that each model has are one for each model; of others they are a gradient over layers.

    >>> print(inline_recipe(["a", "b"], "linear", None, {"weight": "0.7,0.3", "normalize": "true"}), end="")
    merge_method: linear
    models:
      - model: a
        parameters: {weight: 0.7}
      - model: b
        parameters: {weight: 0.3}
    parameters: {normalize: true}
    """
    spec = load_method(method).spec
    own: list[dict[str, str]] = [{} for _ in models]
    shared = {}
    for name, text in values.items():
        parts = [part.strip() for part in text.split(",")]
        parameter = spec.find(name)
        if len(parts) == 1:
            shared[name] = parts[0]
        elif parameter is None or not parameter.per_model:
            shared[name] = f"[{', '.join(parts)}]"
        elif len(parts) != len(models):
            raise UsageError(f"{name} has {len(parts)} values for {len(models)} models; expected one, or one for each")
        else:
            for each, part in zip(own, parts, strict=True):
                each[name] = part
    lines = [f"merge_method: {_scalar(method)}"]
    if base is not None:
        lines.append(f"base_model: {_scalar(base)}")
    lines.append("models:")
    for model, each in zip(models, own, strict=True):
        lines.append(f"  - model: {_scalar(model)}")
        if each:
            lines.append(f"    parameters: {_mapping(each)}")
    if shared:
        lines.append(f"parameters: {_mapping(shared)}")
    return "\n".join(lines) + "\n"


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}"


def _scalar(text: str) -> str:
    """A text of YAML, in quotes if it could be read as something else.

    >>> _scalar("models/a"), _scalar("a: b"), _scalar("no")
    ('models/a', '"a: b"', '"no"')
    """
    return text if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT else json.dumps(text, ensure_ascii=False)
