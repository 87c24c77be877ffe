"""Build click commands from functions and their annotations.

``Annotated[int, Option(help="...")]`` declares an option named after the parameter, and
``Annotated[Path, Argument("...")]`` an argument. A parameter whose type is a NamedTuple adds one option per field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from inspect import Parameter, getdoc, signature
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import click

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
_TYPES: dict[Any, click.ParamType[Any]] = {str: click.STRING, int: click.INT, float: click.FLOAT, bool: click.BOOL}


class Argument(NamedTuple):
    """An argument, repeatable if its type is a list. It is required unless the parameter has a default."""

    help: str
    metavar: str | None = None
    values: Callable[[], Iterable[str]] | None = None


class Option:
    """An option. Without flags, it is named after its parameter, and a bool also gets a ``--no-`` option.

    ``values`` returns the values for shell completion.
    """

    def __init__(
        self,
        *flags: str,
        help: str,
        metavar: str | None = None,
        min: int | None = None,
        check: Callable[[Any], Any] | None = None,
        values: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self.flags, self.help, self.metavar, self.min, self.check, self.values = (
            flags,
            help,
            metavar,
            min,
            check,
            values,
        )


class _Argument(click.Argument):
    """An argument with a help text."""

    def __init__(self, name: str, label: str, argument: Argument, **settings: Any) -> None:
        super().__init__([name], **settings)
        self.values = argument.values
        choices = f":{_type_metavar(self.type)}" if isinstance(self.type, click.Choice) else ""
        self.metavar = label if self.required else f"[{label}]"
        self.hint, self.label, self.description = f"'{label}'", label + choices, argument.help

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002 - signature of click
        return self.hint


class _Option(click.Option):
    """An option with values for shell completion."""

    def __init__(self, names: list[str], values: Callable[[], Iterable[str]] | None, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.values = values


def completions(parameter: click.Parameter) -> list[str]:
    """Return the known values of a parameter, or nothing for paths, numbers and free text."""
    if isinstance(parameter.type, click.Choice):
        return [str(choice) for choice in parameter.type.choices]
    values = getattr(parameter, "values", None)
    return [] if values is None else list(values())


class _Command(click.Command):
    """A command whose help lists its arguments."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [each for each in self.params if isinstance(each, _Argument)]
        rows = [(each.label, each.description + "  [required]" * each.required) for each in arguments]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


def command(name: str, function: Callable[..., None]) -> click.Command:
    """Return a command that parses the parameters of a function and calls it.

    >>> from typing import Annotated
    >>> def show(name: Annotated[str, Argument("What.")], times: Annotated[int, Option(help="How often.")] = 1) -> None:
    ...     print(" ".join([name] * times))
    >>> command("show", show).main(["tensor", "--times", "2"], standalone_mode=False)
    tensor tensor
    """
    declared = list(_declared(function))
    groups = {each.group: each.group_type for each in declared if each.group is not None}

    def call(**values: Any) -> None:
        for group, group_type in groups.items():
            fields = {each.name: values.pop(each.name) for each in declared if each.group == group}
            values[group] = group_type(**fields)
        function(**values)

    parameters = [_click_parameter(each) for each in declared]
    return _Command(name, callback=call, params=parameters, help=getdoc(function), context_settings=dict(HELP_OPTIONS))


class _Declared(NamedTuple):
    """A parameter, or a field of a NamedTuple parameter."""

    name: str
    annotation: Any
    default: Any
    group: str | None = None
    group_type: Any = None


def _declared(function: Callable[..., None]) -> Iterator[_Declared]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in signature(function).parameters.items():
        annotation = hints[name]
        if hasattr(annotation, "_field_defaults"):
            defaults: Mapping[str, Any] = annotation._field_defaults
            for field, hint in get_type_hints(annotation, include_extras=True).items():
                yield _Declared(field, hint, defaults[field], name, annotation)
        else:
            yield _Declared(name, annotation, parameter.default)


def _click_parameter(declared: _Declared) -> click.Parameter:
    annotation, described = get_args(declared.annotation)
    is_literal = get_origin(annotation) is Literal
    plain = annotation if is_literal else next((x for x in get_args(annotation) if x is not NoneType), annotation)
    is_list = get_origin(annotation) is list or get_origin(plain) is list
    item = get_args(plain)[0] if get_origin(plain) is list else plain
    if isinstance(described, Argument):
        label, count = described.metavar or declared.name.upper(), -1 if is_list else 1
        is_required = declared.default is Parameter.empty
        default = {} if is_required else {"default": declared.default}
        return _Argument(
            declared.name, label, described, type=_click_type(item), nargs=count, required=is_required, **default
        )
    return _click_option(declared, described, item, is_list)


def _click_option(declared: _Declared, option: Option, item: Any, is_list: bool) -> click.Option:
    flag, value_type, check = f"--{declared.name.replace('_', '-')}", _click_type(item, option.min), option.check
    if item is bool:
        names = option.flags or (f"{flag}/--no-{flag[2:]}",)
        shown = not option.flags
        return click.Option(
            [declared.name, *names], is_flag=True, default=declared.default, help=option.help, show_default=shown
        )
    default = {"required": True} if declared.default is Parameter.empty else {"default": declared.default}
    return _Option(
        [declared.name, *(option.flags or (flag,))],
        values=option.values,
        type=value_type,
        metavar=option.metavar or _type_metavar(value_type),
        help=option.help,
        show_default=True,
        multiple=is_list,
        callback=None if check is None else lambda _context, _parameter, value: check(value),
        **default,
    )


def _click_type(annotation: Any, least: int | None = None) -> click.ParamType[Any]:
    if annotation is int and least is not None:
        return click.IntRange(min=least)
    if annotation is Path:
        return click.Path(path_type=Path)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return click.Choice(list(annotation))
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    return _TYPES[annotation]


def _type_metavar(value_type: click.ParamType[Any]) -> str:
    if isinstance(value_type, click.Choice):
        return "|".join(value_type.choices)
    names = {"text": "TEXT", "integer": "N", "integer range": "N", "float": "NUMBER", "path": "PATH"}
    return names.get(value_type.name, value_type.name.upper())
