"""Hooks of mkdocs: docs/reference.md lists the public names from the sources, and CONTRIBUTING.md is a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "<!-- public names -->"
SOURCE = Path(__file__).parent.parent / "src" / "lbrx"
SECTIONS = {"files": "Files", "jobs": "Jobs", "models": "Jobs", "tensors": "Tensors", "errors": "Errors"}
MODULES = ("ops", "memory", "metal")
"""Public modules of the package. Each has its own section."""
CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"


def on_files(files: Any, config: Any) -> Any:
    """Add the page contributing.md, with links relative to docs/."""
    from mkdocs.structure.files import File

    text = re.sub(r"\]\(docs/", "](", CONTRIBUTING.read_text(encoding="utf-8"))
    files.append(File.generated(config, "contributing.md", content=text))
    return files


def on_page_markdown(markdown: str, **_page: Any) -> str:
    markdown = markdown.replace("](../CONTRIBUTING.md)", "](contributing.md)")
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """The sections of the page, with a directive of mkdocstrings for each name."""
    sections: dict[str, list[str]] = {title: [] for title in (*dict.fromkeys(SECTIONS.values()), "Other")}
    for name, module in public_names("lbrx"):
        layer = module.split(".")[1]
        if name not in MODULES and layer != "version":
            sections[SECTIONS.get(layer, "Other")].append(f"lbrx.{name}")
    for module in MODULES:
        sections[f"lbrx.{module}"] = [f"lbrx.{module}.{name}" for name, _ in public_names(f"lbrx.{module}")]
    return "\n\n".join(
        "\n\n".join([f"## {title}", *(f"::: {name}" for name in sorted(names))])
        for title, names in sections.items()
        if names
    )


def public_names(package: str) -> Iterator[tuple[str, str]]:
    """Each name that a package imports from lbrx to export it, and the module that defines it."""
    path = SOURCE.joinpath(*package.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("lbrx"):
            for alias in node.names:
                if alias.asname in (None, alias.name) and alias.name != "lazy_names":
                    module = f"{node.module}.{alias.name}" if node.module == "lbrx" else node.module
                    yield alias.name, module
