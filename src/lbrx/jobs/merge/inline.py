"""A recipe from the options of a command: models, a method, and values of its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from lbrx.errors import UsageError, nearest
from lbrx.jobs.merge.methods import load_method
from lbrx.jobs.merge.methods.parameters import MethodSpec, Required

_KEYS = ("dtype", "out_dtype")  # of the recipe itself
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
    _check(spec, base, values)
    own: list[dict[str, str]] = [{} for _ in models]
    shared = {}
    for name, text in values.items():
        if name in _KEYS:
            continue
        parameter = spec.find(name)
        parts = [part.strip() for part in text.split(",")]
        if parameter is not None and parameter.type == "str":
            parts = [yaml_scalar(part) for part in parts]
        if len(parts) == 1:
            shared[name] = parts[0]
        elif parameter is None or not parameter.per_model:
            shared[name] = f"[{', '.join(parts)}]"
        elif len(parts) != len(models):
            raise UsageError(f"{name} has {len(parts)} values for {len(models)} models; expected one, or one for each")
        else:
            for each, part in zip(own, parts, strict=True):
                each[name] = part
    lines = [f"merge_method: {yaml_scalar(method)}", *(f"{key}: {values[key]}" for key in _KEYS if key in values)]
    if base is not None:
        lines.append(f"base_model: {yaml_scalar(base)}")
    lines.append("models:")
    for model, each in zip(models, own, strict=True):
        lines.append(f"  - model: {yaml_scalar(model)}")
        if each:
            lines.append(f"    parameters: {_mapping(each)}")
    if shared:
        lines.append(f"parameters: {_mapping(shared)}")
    return "\n".join(lines) + "\n"


def _check(spec: MethodSpec, base: str | None, values: Mapping[str, str]) -> None:
    """Raise errors in the words of the command line."""
    known = [parameter.name for parameter in spec.parameters]
    for name in values:
        if name not in (*known, *_KEYS):
            hint = nearest(name, known) or f"; expected {', '.join((*known, *_KEYS))}"
            raise UsageError(f"{spec.name} has no parameter {name!r}{hint}")
    if spec.needs_base == "required" and base is None:
        raise UsageError(f"{spec.name} needs a base model; expected --base MODEL")
    for parameter in spec.parameters:
        if isinstance(parameter.default, Required) and parameter.name not in values:
            option = "--weight W" if parameter.name == "weight" else f"--set {parameter.name}=VALUE"
            raise UsageError(f"{spec.name} needs the parameter {parameter.name!r}; expected {option}")


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}"


def yaml_scalar(text: str) -> str:
    """A text of YAML, in quotes if it could be read as something else.

    >>> yaml_scalar("models/a"), yaml_scalar("a: b"), yaml_scalar("no")
    ('models/a', '"a: b"', '"no"')
    """
    return text if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT else json.dumps(text, ensure_ascii=False)
