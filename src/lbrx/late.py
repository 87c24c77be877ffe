"""Names of packages that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late_names(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that has these names, given by the module that they are in.

    A name is written ``"public=own"`` where the module calls it otherwise. What is no name is a module of the package.

    >>> late_names("lbrx", {"lbrx.checkpoint": ("open=open_checkpoint",)})("open").__name__
    'open_checkpoint'
    >>> late_names("lbrx", {})("errors").__name__
    'lbrx.errors'
    """
    places = {}
    for module, listed in names.items():
        for name in listed:
            public, _, own = name.partition("=")
            places[public] = (module, own or public)

    def __getattr__(name: str) -> Any:
        if name in places:
            module, own = places[name]
            found = getattr(import_module(module), own)
            setattr(sys.modules[package], name, found)
            return found
        if not name.startswith("_"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
