"""Recording which lines run: statements of our functions set a flag each, at little cost and in all threads."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

_FLAGS = "__line_flags__"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Recording:
    """The flags of all modules below ``source`` that are imported from now on, if ``folders`` has theirs."""

    def __init__(self, source: Path, folders: Sequence[str]) -> None:
        self._flags: dict[str, bytearray] = {}
        sys.meta_path.insert(0, _Finder(source, tuple(f"{folder}/" for folder in folders), self._flags))

    def clear(self) -> None:
        for flags in self._flags.values():
            flags[:] = bytes(len(flags))

    def lines(self) -> dict[str, list[int]]:
        """The lines that ran since the last ``clear``, by source."""
        marked = {file: _marked(flags) for file, flags in self._flags.items()}
        return {file: lines for file, lines in marked.items() if lines}


def _marked(flags: bytearray) -> list[int]:
    lines, line = [], flags.find(1)
    while line >= 0:
        lines.append(line)
        line = flags.find(1, line + 1)
    return lines


class _Finder(PathFinder):
    def __init__(self, source: Path, folders: tuple[str, ...], flags: dict[str, bytearray]) -> None:
        self._source, self._folders, self._all_flags = source, folders, flags

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def, override]
        spec = PathFinder.find_spec(name, path, target) if name.startswith("lbrx.") else None
        if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(self._source):
            return None
        file = Path(spec.origin).relative_to(self._source).as_posix()
        if not file.startswith(self._folders):
            return None
        flags = self._all_flags.setdefault(file, bytearray(Path(spec.origin).read_text().count("\n") + 2))
        locations = spec.submodule_search_locations
        loader = _Loader(name, spec.origin, flags)
        return spec_from_file_location(name, spec.origin, loader=loader, submodule_search_locations=locations)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, flags: bytearray) -> None:
        super().__init__(name, path)
        self._flags = flags

    def get_code(self, _name: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text(), self.path)
        return compile(instrumented(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_FLAGS] = self._flags
        super().exec_module(module)


def instrumented(tree: ast.Module) -> ast.Module:
    """The module with a flag set before each statement of each function.

    >>> print(ast.unparse(instrumented(ast.parse("def f(a):\\n    return a"))))
    def f(a):
        __line_flags__[2] = 1
        return a
    """
    for function in [node for node in ast.walk(tree) if isinstance(node, _Function)]:
        is_documented = ast.get_docstring(function, clean=False) is not None
        _mark(function.body, 1 if is_documented else 0)
    return ast.fix_missing_locations(tree)


def _mark(body: list[ast.stmt], first: int) -> None:
    marked = list(body[:first])
    for statement in body[first:]:
        if not isinstance(statement, _Function | ast.ClassDef):
            for inner in _bodies(statement):
                _mark(inner, 0)
        marked += [_flag(statement), statement]
    body[:] = marked


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, field, None):
            yield inner
    for handler in getattr(statement, "handlers", []) + getattr(statement, "cases", []):
        yield handler.body


def _flag(statement: ast.stmt) -> ast.stmt:
    (flag,) = ast.parse(f"{_FLAGS}[{statement.lineno}] = 1").body
    for node in ast.walk(flag):
        ast.copy_location(node, statement)
    return flag
