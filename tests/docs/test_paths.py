"""The pages about the source name files, folders and names that exist."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/lbrx"
DOCS = ROOT / "docs"
PAGES = [DOCS / "architecture.md", DOCS / "glossary.md", *sorted((DOCS / "decisions").glob("*.md"))]
GUIDES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
_PATH = re.compile(r"`((?:\w+/)*(?:\w+\.py|\w+/))`")
_MODULE = re.compile(r"\blbrx(?:\.\w+)+")
_NAME_IN_FILE = re.compile(r"`(\w+)` in\s+`([\w/]+\.py)`")
_FOLDERS = (SOURCE, ROOT, SOURCE.parent, SOURCE / "devices/metal")  # that paths are relative to


def resolved(path: str) -> Path | None:
    return next((folder / path for folder in _FOLDERS if (folder / path).exists()), None)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    paths = _PATH.findall(page.read_text(encoding="utf-8"))
    if page not in PAGES:  # other pages have files of examples, without a folder
        paths = [path for path in paths if "/" in path and path.endswith(".py")]
    assert [path for path in paths if resolved(path) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_in_their_files(page: Path) -> None:
    missing = []
    for name, path in _NAME_IN_FILE.findall(page.read_text(encoding="utf-8")):
        content = (SOURCE / path).read_text(encoding="utf-8")
        if not re.search(rf"^(?:class |def )?{name}\b", content, re.MULTILINE):
            missing.append(f"{name} in {path}")
    assert missing == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_modules_exist(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    now = re.sub(r"^\| `lbrx.*?` (?:\(.*\) )?\| ", "", content, flags=re.MULTILINE)  # without a column of old names
    names = sorted(
        set(_MODULE.findall(now)) - {"lbrx.checksums.json", "lbrx.methods", "lbrx.codecs"}
    )  # and groups of entry points
    assert [name for name in names if pydoc.locate(name) is None] == []


def test_every_folder_of_the_package_is_described() -> None:
    layers = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("\n## Layers\n")[2]
    drawing = layers.partition("```")[2].partition("```")[0].split()
    folders = [child.name for child in SOURCE.iterdir() if (child / "__init__.py").exists()]
    assert [name for name in folders if name not in drawing] == []


def test_decisions_are_numbered_and_listed() -> None:
    pages = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert [name[:4] for name in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    index = (DOCS / "decisions/README.md").read_text(encoding="utf-8")
    assert re.findall(r"\(([^)]+\.md)\)", index) == pages
