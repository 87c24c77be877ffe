"""The page that maps commands of other tools names only commands and options that lbrx has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lbrx.cli.main import COMMANDS
from lbrx.cli.parameters import command
from lbrx.registry import load

PAGE = Path(__file__).parents[2] / "docs/coming_from.md"
_SECTION = re.compile(r"^## (?P<title>.+?)(?: \(lbrx (?P<command>\w+)\))?$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


def named_options() -> Iterator[tuple[str, str]]:
    """Each command of lbrx in the right column, with an option that is named for it (or an empty string)."""
    parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    for default, text in zip(parts[2::3], parts[3::3], strict=True):
        for row in re.findall(r"^\| .* \|$", text, re.MULTILINE)[1:]:
            for code in _CODE.findall(row.split(" | ", 1)[1]):
                explicit = re.match(r"lbrx (\w+)", code)
                name = explicit[1] if explicit else default
                if explicit:
                    yield name, ""
                for option in _OPTION.findall(code) if explicit or code.startswith("--") else ():
                    yield name or "", option


def options_of(name: str) -> set[str]:
    parameters = command(name, load(COMMANDS[name].target)).params
    options = [each for each in parameters if isinstance(each, click.Option)]
    return {spelling for option in options for spelling in (*option.opts, *option.secondary_opts)} | {""}


@pytest.mark.parametrize("name", sorted({name for name, _ in named_options()}))
def test_options_exist(name: str) -> None:
    assert name in COMMANDS
    assert {option for each, option in named_options() if each == name} <= options_of(name)


def test_the_page_is_read() -> None:
    named = set(named_options())
    assert {("merge", "--seed"), ("quantize", "--target-size"), ("score", "--reference")} <= named
    assert len(named) > 50
