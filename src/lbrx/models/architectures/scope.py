"""Expressions over the keys of a config.json, such as ``num_attention_heads * head_dim``.

Architectures are data: shapes and conditions are written as text and evaluated here. The language is a
small part of Python's: names, numbers, strings, ``+ - * // %``, comparisons, ``in``, ``and or not`` and
``a if b else c``. There are no calls, attributes or subscripts.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lbrx.errors import UsageError, nearest

Config = Mapping[str, Any]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}


def text_section(config: Config) -> Config:
    """The part of a config.json that describes the language model: ``text_config`` if there is one.

    >>> text_section({"model_type": "gemma3", "text_config": {"hidden_size": 8}})
    {'hidden_size': 8}
    """
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


class Scope:
    """The values that expressions may name: the language model's config, then defaults.

    A default is an expression itself, so that ``head_dim`` may be ``hidden_size // num_attention_heads``.
    A key whose value is null counts as absent.

    >>> scope = Scope({"hidden_size": 8, "heads": 2}, {"head_dim": "hidden_size // heads"})
    >>> scope.evaluate("2 * head_dim")
    8
    >>> scope.evaluate("layer % 2 == 1", layer=3)
    True
    """

    def __init__(self, config: Config, defaults: Mapping[str, Any]) -> None:
        self._section = text_section(config)
        self._defaults = defaults

    def value(self, key: str, **local: Any) -> Any:
        """The value of one key.

        >>> Scope({"n_layer": 2}, {"num_hidden_layers": "n_layer"}).value("num_hidden_layers")
        2
        """
        if key in local:
            return local[key]
        if (value := self._section.get(key)) is not None:
            return value
        if key not in self._defaults:
            hint = nearest(key, self._section)
            raise UsageError(f"config.json has no {key!r}, which the architecture needs{hint}")
        default = self._defaults[key]
        return self.evaluate(default, **local) if isinstance(default, str) else default

    def evaluate(self, expression: str | int, **local: Any) -> Any:
        """The value of an expression; ``local`` names come before the config's.

        >>> Scope({"vocab_size": 64}, {}).evaluate("vocab_size + 1")
        65
        """
        if isinstance(expression, int):
            return expression
        try:
            return self._value_of(_parsed(expression), local)
        except (TypeError, ZeroDivisionError) as error:
            raise UsageError(
                f"config.json: cannot compute {expression!r} from its values: {error}; expected whole numbers"
            ) from error

    def whole_number(self, expression: str | int) -> int:
        """The value of an expression that must be a whole number, not negative.

        >>> Scope({"hidden_size": 8}, {}).whole_number("4 * hidden_size")
        32
        """
        value = self.evaluate(expression)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"config.json: {expression!r} is {value!r}; expected a whole number")
        return value

    def _value_of(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=key):
                return self.value(key, **local)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self._value_of(left, local), self._value_of(right, local))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self._value_of(left, local), self._value_of(right, local))
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self._value_of(value, local) for value in values)
            case ast.BoolOp(values=values):
                return any(self._value_of(value, local) for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value_of(operand, local)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value_of(body if self._value_of(test, local) else orelse, local)
        raise UsageError(f"{ast.unparse(node)!r} is not allowed in an architecture's expression")


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body
