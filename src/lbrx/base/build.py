"""Which build of lbrx this is: two builds of one version may compute in different ways."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lbrx.version import __version__

_PACKAGE = Path(__file__).parents[1]
_WITHOUT_NUMBERS = ("cli", "cluster", "demo", "plots")  # folders that no computed value depends on
_ENDINGS = (".py", ".metal", ".h", ".json")


@cache
def build() -> str:
    """The version, and a digest of the sources that compute: the same on every machine.

    Results of another build are not mixed with those of this one.

    >>> build().startswith(__version__)
    True
    """
    return f"{__version__} (sources {sources_digest(_PACKAGE)})"


def sources_digest(package: Path) -> str:
    """A digest of the names and contents of a package's sources, without folders that no value depends on."""
    from xxhash import xxh3_128  # every command imports this module, but few need a digest

    digest = xxh3_128()
    for name, path in _sources(str(package), ""):
        with open(path, "rb", buffering=0) as file:
            content = file.readall()
        digest.update(f"{len(content)} {name}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def _sources(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    """The names and paths of sources in a folder."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                if prefix or entry.name not in _WITHOUT_NUMBERS:
                    yield from _sources(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(_ENDINGS):
                yield f"{prefix}{entry.name}", entry.path
