"""The examples of the README and of the guides are run as they stand.

All blocks of one file run in order, in one empty directory: ```python blocks share their names like one script, and
of ```console blocks the lines `$ lbrx ...` are run and must print what stands below them, where a line `...` stands
for anything. A ```yaml block with a title is written to the file of that name. The README runs in a clone.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from lbrx import memory

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")
_EXTERNAL = re.compile(r"\]\((?P<target>\w+:[^)]*)\)")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    language: str
    text: str
    line: int  # of the file, where the text begins
    title: str | None


def blocks(page: Path) -> Iterator[Block]:
    content = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(content):
        line = content.count("\n", 0, match.start("text")) + 1
        yield Block(match["language"], match["text"], line, match["title"])


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each `$` line of a console block, and the output that stands below it."""
    for piece in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = piece.partition("\n")
        yield command, output


@pytest.fixture
def same_budget() -> Iterator[None]:
    """Examples may set the budget of the process, which other tests share."""
    limit_bytes = memory.budget().limit_bytes
    yield
    memory.set_budget(limit_bytes)


@pytest.mark.usefixtures("same_budget")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.parent == ROOT:
        (tmp_path / "src").symlink_to(ROOT / "src")
    names: dict[str, Any] = {"__name__": "__example__"}
    for block in blocks(page):
        if block.language == "python":
            padded = "\n" * (block.line - 1) + block.text  # so that a traceback has the line of the page
            exec(compile(padded, str(page), "exec"), names)
        elif block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for command, expected in commands(block):
                if command.startswith("lbrx "):
                    check_command(f"{page.name}:{block.line}", command, expected)


def check_command(where: str, command: str, expected: str) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    done = subprocess.run([sys.executable, "-m", "lbrx", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: {command}: {done.stderr}"
    if expected.strip():
        matches = doctest.OutputChecker().check_output(expected.strip(), done.stdout.strip(), _FLAGS)
        assert matches, f"{where}: {command} printed\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = [match["target"] for match in _LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_external_links_are_complete_addresses(page: Path) -> None:
    targets = [urlsplit(match["target"]) for match in _EXTERNAL.finditer(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if target.scheme != "https" or "." not in target.netloc] == []
