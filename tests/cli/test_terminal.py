"""Commands on a terminal of 80 columns: no line is wider, and NO_COLOR removes all styles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from support.cli_running import in_terminal
from support.tiny import LINEAR, make_llama

STYLE = re.compile(r"\x1b\[[0-9;]*m")
ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z])?")
RUN = "import sys, lbrx.cli.progress as p; p._PATIENCE_SECONDS = 1e9; from lbrx.cli.main import run; sys.exit(run({}))"

WITHOUT_BAR = [
    ["--help"],
    ["merge", "--help"],
    ["quantize", "--help"],
    ["inspect", "a"],
    ["inspect", "a", "--tensors"],
    ["merge", "recipe.yml", "out"],
    ["merge", "recipe.yml", "out", "--dry-run"],
    ["convert", "a", "c", "--format=mlx", "--dry-run"],
    ["methods"],
    ["methods", "linear"],
    ["types"],
    ["inspect", "gone"],
]
WITH_BAR = [["verify", "a"], ["diff", "a", "b"], ["compare", "a", "b"], ["quantize", "a", "q", "--to=int8"]]


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    (folder / "recipe.yml").write_text(LINEAR)


@pytest.mark.parametrize("arguments", [*WITHOUT_BAR, *WITH_BAR], ids=" ".join)
def test_lines_fit_and_no_color_removes_styles(arguments: list[str]) -> None:
    code, shown = in_terminal("-c", RUN.format(arguments), NO_COLOR="1")
    assert code == int("gone" in arguments), shown
    assert not STYLE.search(shown)
    if arguments in WITHOUT_BAR:
        assert "\x1b" not in shown
    lines = re.split(r"[\r\n]+", ESCAPE.sub("", shown))
    assert [line for line in lines if cell_len(line) > 80] == []


def test_dropped_columns_do_not_cut_the_others() -> None:
    from rich.console import Console

    from lbrx.cli.console import columns

    table = columns("model", "long heading", "number", "KL", "top", left=("model",), dropped_first=("long heading",))
    table.add_row("m", "1", "2", "reference", "")
    console = Console(width=32)
    with console.capture() as captured:
        console.print(table)
    assert captured.get().splitlines()[1].split() == ["m", "2", "reference"]


def test_without_no_color_a_terminal_shows_styles() -> None:
    _, shown = in_terminal("-c", RUN.format(["inspect", "a"]))
    assert STYLE.search(shown)
    _, unset = in_terminal("-c", RUN.format(["inspect", "a"]), NO_COLOR="")
    assert unset == shown
