"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^    from (\S+) import (\([^)]*\)|.*)", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package from the imports that its file has for type checkers.

    The file lists each public name once, as ``from module import name as name`` below ``if TYPE_CHECKING:``. Other
    names are imported as submodules.

    >>> import lbrx
    >>> lookup, _, public = lazy_names("lbrx", lbrx.__file__)
    >>> lookup("Tensor").__name__, "Tensor" in public, lookup("errors").__name__
    ('Tensor', True, 'lbrx.errors')
    """
    modules: dict[str, str] = {}
    for module, imported in _IMPORT.findall(Path(file).read_text(encoding="utf-8")):
        for item in imported.strip("()\n ").rstrip(",").split(","):
            modules[item.split()[0]] = module

    def __getattr__(name: str) -> Any:
        module = modules.get(name, package)
        if module != package:
            parent = import_module(module)
            value = getattr(parent, name) if hasattr(parent, name) else import_module(f"{module}.{name}")
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_"):
            try:
                return import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(modules)

    return __getattr__, __dir__, sorted(modules)
