"""Putting a mutant into a process that has imported the source already: functions get the code of the mutant."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FunctionType

_Key = tuple[str, int]  # qualified name, and the how many-th function of this name it is


class Functions:
    """The functions that exist when this is made, by the file of their source."""

    def __init__(self) -> None:
        self._by_file: dict[str, list[FunctionType]] = {}
        for function in gc.get_objects():
            if type(function) is FunctionType:
                self._by_file.setdefault(function.__code__.co_filename, []).append(function)

    def replace(self, file: str, original: str, changed: str) -> bool:
        """Give them the code of a changed source. False if that is not possible: a new process can use the source.

        What ran while modules were imported does not run again.
        """
        before, after = _codes(original, file), _codes(changed, file)
        names = {(code.co_qualname, code.co_firstlineno): key for key, code in before.items()}
        replaced = False
        for function in self._by_file.get(file, []):
            code = function.__code__
            key = names.get((code.co_qualname, code.co_firstlineno))
            if key is None or before[key] == after.get(key):
                continue
            if key not in after or after[key].co_freevars != code.co_freevars:
                return False
            function.__code__ = after[key]
            replaced = True
        return replaced


def _codes(text: str, file: str) -> dict[_Key, CodeType]:
    counts: Counter[str] = Counter()
    codes = {}
    for code in _inside(compile(text, file, "exec", dont_inherit=True)):
        counts[code.co_qualname] += 1
        codes[code.co_qualname, counts[code.co_qualname]] = code
    return codes


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)
