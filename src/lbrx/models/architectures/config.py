"""Typed access to config values with bounds, and expressions such as ``heads * head_dim``.

Families are data: shapes and conditions are written as text and evaluated here. The language is a small subset of
Python: names, numbers, strings, ``+ - * / // %``, ``** 0.5``, comparisons, ``in``, ``and or not``, ``a if b else c``,
``list[number]`` and ``object[text]``. It has no calls or attributes.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from lbrx.errors import FormatError, LbrxError, UsageError, nearest

Values = Mapping[str, Any]  # a config.json as parsed

MOST = 1 << 40  # no size of a model is larger
_LARGEST = 1e300  # limit for all numbers: the product with a size is still finite
HEAD_DIM = "hidden_size // num_attention_heads"
# Keys for which null has a meaning other than the default: it disables a feature. Elsewhere null means absent.
_MEANINGS_OF_NULL: dict[str, Any] = {
    "num_key_value_heads": "num_attention_heads",
    "head_dim": HEAD_DIM,
    "sliding_window": None,
    "q_lora_rank": 0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
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


def text_section(config: Values) -> Values:
    """Return the part of a config.json that describes the language model: ``text_config`` if there is one.

    >>> text_section({"model_type": "gemma3", "text_config": {"hidden_size": 8}})
    {'hidden_size': 8}
    """
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def _vision_values(values: Values) -> dict[str, Any]:
    nested = values.get("vision_config")
    return {f"vision_{key}": value for key, value in nested.items()} if isinstance(nested, Mapping) else {}


def first_class(config: Values) -> str:
    """Return the first of the classes that a config.json names, or an empty string.

    >>> first_class({"architectures": ["LlamaForCausalLM"]}), first_class({})
    ('LlamaForCausalLM', '')
    """
    classes = config.get("architectures") or [""]
    if not isinstance(classes, list | tuple) or not isinstance(classes[0], str):
        raise FormatError(f"config.json: 'architectures' is {classes!r:.60}; expected a list of names of classes")
    return classes[0]


class Config:
    """The values of a config.json or of GGUF metadata, checked when they are read.

    Keys in the section of the language model take precedence over those at the top, then over defaults. Keys in the
    section ``vision_config`` have the prefix ``vision_``. A text default is an expression: ``head_dim`` may be
    ``hidden_size // num_attention_heads``. Null counts as absent.
    Errors begin with ``where``. ``keys`` are the names that this family has for usual keys.

    >>> config = Config({"hidden_size": 8, "theta": None}, {"head_dim": "hidden_size // 2", "theta": 1e4})
    >>> config.count("hidden_size"), config.size("2 * head_dim"), config.number("theta")
    (8, 8, 10000.0)
    >>> config.evaluate("layer % 2 == 1", layer=3)
    True
    >>> config.count("hidden_size", at_most=4)
    Traceback (most recent call last):
    lbrx.errors.UsageError: config.json: 'hidden_size' is 8; expected a whole number from 1 to 4
    """

    def __init__(
        self,
        values: Values,
        defaults: Values | None = None,
        where: str = "config.json",
        error_class: type[LbrxError] = UsageError,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        given = {**_vision_values(values), **values, **text_section(values)}
        self._given = {key: value for key, value in given.items() if value is not None}
        for usual, own in (keys or {}).items():  # two names of one value
            for key, other in ((usual, own), (own, usual)):
                if key not in self._given and other in self._given:
                    self._given[key] = self._given[other]
        nulls = {key: value for key, value in _MEANINGS_OF_NULL.items() if given.get(key, "") is None}
        self._defaults = {**(defaults or {}), **nulls}
        self.error_class = error_class
        self.where = where

    @property
    def given(self) -> Values:
        """The explicit values."""
        return self._given

    def get(self, *keys: str) -> Any:
        """Return the first of these keys that has a value, else the first that has a default, else None.

        >>> Config({"sliding_window": None}, {"sliding_window": 4096}).get("sliding_window") is None
        True
        """
        key = next((key for values in (self._given, self._defaults) for key in keys if key in values), None)
        return None if key is None else self.value(key)

    def value(self, key: str, *, expected: str = "a value", **local: Any) -> Any:
        """Return the value of one key, or its default.

        >>> Config({"n_layer": 2}, {"num_hidden_layers": "n_layer"}).value("num_hidden_layers")
        2
        """
        if key in local:
            return local[key]
        if key in self._given:
            return self._given[key]
        if key not in self._defaults:
            raise self.wrong(f"has no {key!r}; expected {expected}{nearest(key, self._given)}")
        default = self._defaults[key]
        return self.evaluate(default, **local) if isinstance(default, str) else default

    def demand(self, *keys: str) -> None:
        """Raise if a key has no explicit value, even if it has a default."""
        for key in keys:
            if key not in self._given:
                raise self.wrong(f"has no {key!r}; expected a whole number above zero{nearest(key, self._given)}")

    def count(self, key: str, *, at_least: int = 1, at_most: int = MOST) -> int:
        """Return a whole number within bounds."""
        expected = "a whole number above zero" if at_least == 1 else f"a whole number of at least {at_least}"
        value = self.value(key, expected=expected)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            if at_most < MOST:
                expected = f"a whole number from {at_least} to {at_most}"
            raise self.wrong(f"{key!r} is {value!r:.60}; expected {expected}")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """Return a finite number above zero from the first key that has one, else the family's default or
        ``default``.
        """
        expected = "a number above zero"
        value = self.get(*keys)
        if value is None:
            value = self.value(keys[0], expected=expected) if default is None else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            raise self.wrong(f"{keys[0]!r} is {value!r:.60}; expected {expected}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean. The default of the family takes precedence over ``default``."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"{key!r} is {value!r:.60}; expected true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        value = self._given.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(f"{key!r} is {value!r:.60}; expected text")
        return value

    def per_layer(self, key: str, layers: int, allowed: Sequence[Any]) -> Sequence[Any] | None:
        """Return a list with one of the allowed values for each layer, or None."""
        values = self._given.get(key)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or len(values) != layers or any(each not in allowed for each in values):
            known = " or ".join(map(repr, allowed))
            raise self.wrong(f"{key!r} is {values!r:.60}; expected {known} for each of {layers} layers")
        return values

    def wrong(self, problem: str) -> LbrxError:
        """Return the error for a value that cannot be used."""
        return self.error_class(f"{self.where}: {problem}")

    def evaluate(self, expression: str | int, **local: Any) -> Any:
        """Evaluate an expression; ``local`` names take precedence over those of the config.

        >>> Config({"vocab_size": 64}).evaluate("vocab_size + 1")
        65
        """
        if isinstance(expression, int):
            return expression
        try:
            return self._value_of(_parsed(expression), local)
        except (TypeError, ArithmeticError, MemoryError) as error:
            raise self.wrong(
                f"cannot compute {expression!r} from its values: {error}; expected whole numbers"
            ) from error

    def size(self, expression: str | int, *, at_most: int = MOST, **local: Any) -> int:
        """Evaluate an expression whose value must be a non-negative integer.

        >>> Config({"hidden_size": 8}).size("4 * hidden_size")
        32
        """
        value = self.evaluate(expression, **local)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= at_most:
            bound = "" if at_most == MOST else f" of at most {at_most}"
            raise self.wrong(f"{expression!r} is {value!r:.60}; expected a whole number{bound}")
        return value

    def shape(self, dimensions: Sequence[str | int], **local: Any) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        return tuple(self.size(each, **local) for each in dimensions)

    def real(self, expression: str, **local: Any) -> float:
        """Evaluate an expression whose value must be a finite number above zero.

        >>> Config({"scale": 4}).real("1 / scale")
        0.25
        """
        value = self.evaluate(expression, **local)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
            raise self.wrong(f"{expression!r} is {value!r:.60}; expected a number above zero")
        return float(value)

    def _value_of(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=key):
                return self.value(key, **local)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                operands = self._value_of(left, local), self._value_of(right, local)
                if not all(isinstance(operand, int | float) for operand in operands):  # text * size would be huge
                    raise TypeError(f"{operands[0]!r:.60} and {operands[1]!r:.60} are not both numbers")
                return _BINARY[type(op)](*operands)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=0.5)):
                return self._root(self._value_of(left, local))
            case ast.Subscript(value=listed, slice=index):
                return self._item(self._value_of(listed, local), self._value_of(index, local), ast.unparse(listed))
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

    def _root(self, value: Any) -> float:
        if not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
            raise TypeError(f"{value!r:.60} has no square root")
        return math.sqrt(value)

    def _item(self, values: Any, index: Any, name: str) -> Any:
        if isinstance(values, Mapping) and isinstance(index, str):
            return values.get(index)
        if not isinstance(values, list | tuple | str) or not isinstance(index, int) or not 0 <= index < len(values):
            raise self.wrong(f"{name!r} is {values!r:.60}; expected a list with more than {index!r:.20} items")
        return values[index]


@cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body
