"""Which build of lbrx this is: two builds of one version may compute in different ways."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lbrx.version import __version__

_PACKAGE = Path(__file__).parents[1]
_WITHOUT_NUMBERS = ("cli", "cluster", "demo", "plots")  # folders on which no computed value depends


@cache
def build() -> str:
    """The version, and a digest of the sources that compute: the same on every machine.

    Results that were kept by another build are not mixed with those of this one.

    >>> build().startswith(__version__)
    True
    """
    return f"{__version__} (sources {sources_digest(_PACKAGE)})"


def sources_digest(package: Path) -> str:
    """A digest of the names and contents of a package's sources, without folders on which no value depends."""
    digest = hashlib.sha256()
    for path in _sources(package):
        name = path.relative_to(package).as_posix()
        if not name.startswith(tuple(f"{folder}/" for folder in _WITHOUT_NUMBERS)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{content} {name}\n".encode())
    return digest.hexdigest()[:12]


def _sources(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _sources(folder / entry.name)
            elif entry.name.endswith((".py", ".metal", ".h", ".json")):
                yield folder / entry.name
