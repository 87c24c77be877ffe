"""`lbrx methods`: list the merge methods and their parameters."""

from __future__ import annotations

import json
import sys
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.parameters import Argument, Option
from lbrx.registry import METHODS

if TYPE_CHECKING:
    from lbrx.jobs.merge.methods import Method
    from lbrx.jobs.merge.methods.parameters import MethodParameter


def methods(
    name: Annotated[str | None, Argument("Show the parameters of this method.", "NAME", lambda: METHODS)] = None,
    json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """List merge methods, or the parameters of one.

    Examples:

      lbrx methods

      lbrx methods ties
    """
    from lbrx.jobs.merge.methods import load_method

    chosen = [load_method(each) for each in (METHODS if name is None else [name])]
    if json_output:
        sys.stdout.write(json.dumps([_as_json(method) for method in chosen], indent=2) + "\n")
    elif name is None:
        _print_all(chosen)
    else:
        _print_one(chosen[0])


def _print_all(chosen: list[Method]) -> None:
    from lbrx.cli.console import columns, output_console

    table = columns("method", "base", "models", "parameters", left=("method", "base", "models", "parameters"))
    table.columns[3].no_wrap = False
    for method in chosen:
        named = [each.name for each in method.spec.parameters if each.effective]
        table.add_row(method.name, _base_text(method), _count_text(method), ", ".join(named))
    console = output_console()
    console.print(table)
    console.print("\nRun 'lbrx methods NAME' for parameters, an example command and a recipe.", style="dim")


def _base_text(method: Method) -> str:
    return {"required": "yes", "optional": "optional"}.get(method.spec.needs_base, "no")


def _count_text(method: Method) -> str:
    """Return how many models a method takes, not counting the base."""
    least, most = method.spec.model_count
    return str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def _print_one(method: Method) -> None:
    from lbrx.cli.console import columns, facts, output_console, printable
    from lbrx.jobs.merge.inline import inline_recipe

    console = output_console()
    console.print(method.name, style="bold")
    if summary_of(method):
        console.print(printable(summary_of(method)))
    console.print()
    console.print(facts([("base model", _base_text(method)), ("models", _count_text(method))]))
    effective = [each for each in method.spec.parameters if each.effective]
    if effective:
        table = columns("parameter", "type", "default", "range", "of", left=("parameter", "type", "range", "of"))
        for each in effective:
            of = "each model" if each.per_model else "all models"
            table.add_row(each.name, each.type, _default_text(each), _range_text(each), of)
        console.print()
        console.print(table)
    models = ["model-a", "model-b", "model-c"][: max(method.spec.model_count[0], 1)]
    if method.spec.model_count[1] is None and len(models) == 1:
        models.append("model-b")
    base = "base" if method.spec.needs_base == "required" else None
    values = {each.name: _example(each) for each in effective if _is_shown(each)}
    options = "".join(f" --set {name}={value}" for name, value in values.items())
    command = f"lbrx merge {' '.join(models)} --method {method.name}{' --base base' if base else ''}{options} --out OUT"
    console.print("\nas a command", style="dim")
    console.print(command, soft_wrap=True)
    console.print("\nas a recipe", style="dim")
    console.print(inline_recipe(models, method.name, base, values), end="", soft_wrap=True)


def summary_of(method: Method) -> str:
    """Return the first paragraph of the method's docstring."""
    return " ".join((getdoc(method.function) or "").split("\n\n")[0].split())


def _is_shown(parameter: MethodParameter) -> bool:
    return parameter.name in ("weight", "density", "t") or _default_text(parameter) == "required"


def _example(parameter: MethodParameter) -> str:
    if parameter.is_text:
        return "text-a.txt,text-b.txt"
    if _default_text(parameter) == "required":
        return "0.5" if parameter.type == "float" else "1"
    return _default_text(parameter)


def _default_text(parameter: MethodParameter) -> str:
    from lbrx.jobs.merge.methods.parameters import Required

    default = parameter.default
    if isinstance(default, Required):
        return "required"
    if isinstance(default, bool | str):
        return str(default).lower()
    return "-" if default is None else f"{default:g}"


def _range_text(parameter: MethodParameter) -> str:
    least, most = parameter.minimum, parameter.maximum
    if least is None and most is None:
        return ""
    if least is None or most is None:
        return f"from {least:g}" if most is None else f"to {most:g}"
    return f"{least:g} to {most:g}"


def _as_json(method: Method) -> dict[str, Any]:
    from lbrx.jobs.merge.methods.parameters import Required

    return {
        "name": method.name,
        "summary": summary_of(method),
        "base": method.spec.needs_base,
        "models": list(method.spec.model_count),
        "parameters": [
            {
                "name": each.name,
                "type": each.type,
                "required": isinstance(each.default, Required),
                "default": None if isinstance(each.default, Required) else each.default,
                "minimum": each.minimum,
                "maximum": each.maximum,
                "per_model": each.per_model,
            }
            for each in method.spec.parameters
            if each.effective
        ],
    }
