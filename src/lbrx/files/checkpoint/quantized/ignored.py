"""Modules that a quantization left out, by the settings of config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lbrx.files.formats.name_patterns import NamePatterns

_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
_EXPRESSION = "re:"


class IgnoredModules:
    """Names of modules, or of what contains them; names with wildcards, and regular expressions after ``re:``.

    >>> ignored = IgnoredModules({"ignore": ["lm_head", "re:.*gate$", "vision.*"]}, "config.json")
    >>> [name in ignored for name in ("lm_head", "lm_head2", "a.gate", "a.gate_proj", "vision.a", "lm_head.a")]
    [True, False, True, False, True, True]
    """

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        lists = [settings[key] for key in _KEYS if isinstance(settings.get(key), list)]
        given = dict.fromkeys(each for names in lists for each in names if isinstance(each, str))
        self._names = frozenset(each for each in given if not each.startswith(_EXPRESSION))
        expressions = [each.removeprefix(_EXPRESSION) for each in given if each.startswith(_EXPRESSION)]
        expressions += [_expression_of(each) for each in given if each in self._names and "*" in each]
        self._expressions = NamePatterns(expressions, f"{where}: the list of modules that are not quantized")

    def __contains__(self, module: str) -> bool:
        pieces = module.split(".")
        if any(".".join(pieces[: count + 1]) in self._names for count in range(len(pieces))):
            return True
        return self._expressions.first_match(module) is not None


def _expression_of(wildcard: str) -> str:
    return ".*".join(map(re.escape, wildcard.split("*"))) + "$"
