"""Values of a config or of GGUF metadata, checked as they are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError


@dataclass(frozen=True, slots=True)
class CheckedValues:
    """Keys and values of a file, which is named in errors. A value that is None counts as absent.

    >>> values = CheckedValues("config.json", {"hidden_size": 64, "rope_theta": None})
    >>> values.count("hidden_size"), values.number("rope_theta", 1e4)
    (64, 10000.0)
    >>> values.count("vocab_size")
    Traceback (most recent call last):
    lbrx.errors.FormatError: config.json: has no 'vocab_size'; expected a whole number above zero
    """

    where: str
    entries: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return self.entries.get(key) is not None

    def _wrong(self, key: str, expected: str) -> FormatError:
        if key not in self:
            return FormatError(f"{self.where}: has no {key!r}; expected {expected}")
        return FormatError(f"{self.where}: {key!r} is {self.entries[key]!r}; expected {expected}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.entries.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self._wrong(key, "a whole number above zero")
        return value

    def optional_count(self, key: str) -> int | None:
        return self.count(key) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.entries.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
            raise self._wrong(key, "a number above zero")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.entries.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.entries.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def section(self, key: str) -> CheckedValues | None:
        """The values under a key, or None."""
        value = self.entries.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object")
        return CheckedValues(f"{self.where}: {key}", value)
