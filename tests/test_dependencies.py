"""Every package that lbrx imports is declared as a dependency, or is optional."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {"yaml": "pyyaml", "objc": "pyobjc", "metal": "pyobjc", "foundation": "pyobjc", "aiohttp": "fsspec"}
FOR_TYPE_CHECKERS = {"_typeshed"}


def imported_packages() -> set[str]:
    """The packages outside the standard library that modules import, at their top or inside functions."""
    packages = set()
    for path in (ROOT / "src/lbrx").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                packages.add(node.module.partition(".")[0])
    return packages - set(sys.stdlib_module_names) - {"lbrx", "__future__"} - FOR_TYPE_CHECKERS


def test_imported_packages_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [
        each for extra in ("remote", "cluster", "plot", "metal") for each in project["optional-dependencies"][extra]
    ]
    declared = {re.split(r"[\[><=; ]", each)[0].lower() for each in [*project["dependencies"], *optional]}
    missing = {name for name in imported_packages() if NAMES.get(name.lower(), name.lower()) not in declared}
    assert not missing
