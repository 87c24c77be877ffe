"""The search space of a recipe: every value that is written as a range or as a choice.

``{search: [0, 1]}`` is a number in a range, ``{search: [0, 1], points: 4}`` a gradient of four numbers over the layers,
and ``{choose: [a, b]}`` one of several values of any form. Everything else is an ordinary recipe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.recipe.yaml_lines import YamlList, YamlMap, YamlNode, YamlScalar, parse_documents

DECIMALS = 5
_MOST_POINTS = 64
_MOST_DIMENSIONS = 512
_KEYS = {"search", "points", "log"}

Value = float | int
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Dimension:
    """One number of a candidate: in a range, or the index of a choice."""

    name: str
    low: float
    high: float
    choices: int = 0  # 0: a range
    is_log: bool = False

    def at(self, share: float) -> Value:
        """Return the value at a share between 0 and 1 of the dimension.

        >>> Dimension("weight", 0.0, 2.0).at(0.25), Dimension("method", 0, 1, choices=3).at(0.99)
        (0.5, 2)
        >>> Dimension("rate", 1e-9, 1e-7, is_log=True).at(0.5)
        1e-08
        """
        share = min(max(share, 0.0), 1.0)
        if self.choices:
            return min(int(share * self.choices), self.choices - 1)
        if self.is_log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        smallest = value if self.is_log else self.high - self.low  # what must stay distinguishable
        decimals = DECIMALS + max(-1 - math.floor(math.log10(smallest)), 0) if smallest > 0 else DECIMALS
        return min(max(round(value, decimals), self.low), self.high)

    def share(self, value: Value) -> float:
        """Return the share of the dimension at which a value is; the inverse of ``at``."""
        if self.choices:
            return (value + 0.5) / self.choices
        if self.high == self.low:
            return 0.5
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A node of the recipe with the dimensions ``first`` to ``first + count``."""

    first: int
    count: int
    options: tuple[Any, ...] = ()  # of a choice
    is_gradient: bool = False


@dataclass(frozen=True, eq=False)
class Space:
    """A recipe with ranges: its documents, with marks where values are searched, and its dimensions."""

    documents: tuple[Any, ...]
    dimensions: tuple[Dimension, ...]
    source: str

    def recipe(self, values: Sequence[Value]) -> str:
        """Return the text of the recipe with these values, as plain YAML.

        >>> space = read_space("merge_method: linear\\nparameters: {weight: {search: [0, 1]}}\\nmodels: [{model: a}]")
        >>> print(space.recipe([0.25]), end="")
        merge_method: linear
        parameters:
          weight: 0.25
        models:
        - model: a
        """
        filled = [_filled(document, values) for document in self.documents]
        return "---\n".join(yaml.safe_dump(each, sort_keys=False, allow_unicode=True) for each in filled)

    def alternatives(self) -> Iterator[tuple[Value, ...]]:
        """Yield values for each alternative of each choice, with the middle of what is outside of it.

        >>> list(read_space("{a: {choose: [1, {choose: [2, 3]}]}, b: {search: [0, 1]}}").alternatives())
        [(0, 1, 0.5), (1, 1, 0.5), (1, 0, 0.5), (1, 1, 0.5)]
        """
        return _alternatives(self.documents, tuple(dimension.at(0.5) for dimension in self.dimensions))

    def chosen(self, number: int, values: Sequence[Value]) -> Any:
        """Return what a dimension puts into the recipe: a number, or the chosen value of a choice.

        >>> read_space("merge_method: {choose: [ties, linear]}").chosen(0, [1])
        'linear'
        """
        if not self.dimensions[number].choices:
            return values[number]
        return _filled(self._options(number)[int(values[number])], values)

    def label(self, number: int, value: Value) -> str:
        """Return a value as text: the chosen value of a choice, if it is short."""
        if not self.dimensions[number].choices:
            return f"{value:g}"
        text = str(_filled(self._options(number)[int(value)], [0] * len(self.dimensions)))
        return text if len(text) <= 24 else f"choice {int(value) + 1}"

    def _options(self, number: int) -> tuple[Any, ...]:
        return next(mark.options for mark in _marks(self.documents) if mark.first == number and mark.options)


def read_space(text: str, source: str = "recipe.yml") -> Space:
    """Read a recipe with ranges and choices.

    >>> [each.name for each in read_space("weight: {search: [0, 1], points: 2}").dimensions]
    ['weight[0]', 'weight[1]']
    """
    dimensions: list[Dimension] = []
    documents = tuple(_read(document, (), dimensions) for document in parse_documents(text, source))
    return Space(documents, tuple(dimensions), source)


def _read(node: YamlNode, path: Path, dimensions: list[Dimension]) -> Any:
    if isinstance(node, YamlScalar):
        return node.value
    if isinstance(node, YamlList):
        return [_read(item, (*path, _item_name(item, index)), dimensions) for index, item in enumerate(node.items)]
    if "search" in node.entries:
        return _range(node, _name(path), dimensions)
    if "choose" in node.entries:
        return _choice(node, path, dimensions)
    return {key: _read(value, (*path, key), dimensions) for key, value in node.entries.items()}


def plain(node: YamlNode) -> Any:
    """Return a node as plain values."""
    if isinstance(node, YamlScalar):
        return node.value
    if isinstance(node, YamlList):
        return [plain(item) for item in node.items]
    return {key: plain(value) for key, value in node.entries.items()}


def _item_name(item: YamlNode, index: int) -> str | int:
    """Items of a list are named by their model or filter, if they have one."""
    if isinstance(item, YamlMap):
        for key in ("model", "filter"):
            value = item.entries.get(key)
            if isinstance(value, YamlScalar) and isinstance(value.value, str):
                return value.value.rstrip("/").rpartition("/")[2]
    return index


def _name(path: Path) -> str:
    skipped = {"models", "slices", "sources", "parameters", "value"}
    words = [str(word) for word in path if word not in skipped]
    return ".".join(words) or "recipe"


def _added(name: str, dimensions: list[Dimension], make: Callable[[str], Dimension]) -> None:
    taken = {each.name for each in dimensions}
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name} ({number})", number + 1
    dimensions.append(make(unique))


def _range(node: YamlMap, name: str, dimensions: list[Dimension]) -> _Mark:
    unknown = sorted(set(node.entries) - _KEYS)
    if unknown:
        raise node.key_locations[unknown[0]].error(
            f"unknown key {unknown[0]!r} next to 'search'; expected points or log"
        )
    ends = node.entries["search"]
    values = [item.value for item in ends.items if isinstance(item, YamlScalar)] if isinstance(ends, YamlList) else []
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    if len(values) != 2 or len(numbers) != 2 or numbers[0] > numbers[1]:
        raise node.location.error("'search' needs two numbers, the smaller one first, such as {search: [0, 1]}")
    is_log = _scalar(node, "log", False)
    if not isinstance(is_log, bool) or (is_log and numbers[0] <= 0):
        raise node.location.error("'log' is true or false; a logarithmic range begins above 0")
    points = _scalar(node, "points", None)
    if points is not None and (
        isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= _MOST_POINTS
    ):
        raise node.location.error(f"'points' is {points!r}; expected a whole number from 2 to {_MOST_POINTS}")
    first, count = len(dimensions), points or 1
    for number in range(count):
        own = f"{name}[{number}]" if points else name
        _added(own, dimensions, lambda unique: Dimension(unique, numbers[0], numbers[1], is_log=is_log))
    _check_count(node, dimensions)
    return _Mark(first, count, is_gradient=points is not None)


def _scalar(node: YamlMap, key: str, default: Any) -> Any:
    value = node.entries.get(key)
    if value is None:
        return default
    return value.value if isinstance(value, YamlScalar) else value


def _choice(node: YamlMap, path: Path, dimensions: list[Dimension]) -> _Mark:
    options = node.entries["choose"]
    if len(node.entries) != 1 or not isinstance(options, YamlList) or not options.items:
        raise node.location.error("'choose' needs a list of values and no other keys, such as {choose: [ties, linear]}")
    first, count = len(dimensions), len(options.items)
    _added(_name(path), dimensions, lambda unique: Dimension(unique, 0, count - 1, choices=count))
    _check_count(node, dimensions)
    return _Mark(first, 1, tuple(_read(item, (*path, index), dimensions) for index, item in enumerate(options.items)))


def _check_count(node: YamlMap, dimensions: Sequence[Dimension]) -> None:
    if len(dimensions) > _MOST_DIMENSIONS:
        raise node.location.error(f"more than {_MOST_DIMENSIONS} values are searched; expected fewer")


def _filled(node: Any, values: Sequence[Value]) -> Any:
    if isinstance(node, _Mark):
        own = list(values[node.first : node.first + node.count])
        if node.options:
            return _filled(node.options[int(own[0])], values)
        return own if node.is_gradient else own[0]
    if isinstance(node, Mapping):
        return {key: _filled(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(item, values) for item in node]
    return node


def _alternatives(node: Any, values: tuple[Value, ...]) -> Iterator[tuple[Value, ...]]:
    if isinstance(node, _Mark):
        for index, option in enumerate(node.options):
            chosen = (*values[: node.first], index, *values[node.first + 1 :])
            yield chosen
            yield from _alternatives(option, chosen)
    elif isinstance(node, Mapping | list | tuple):
        for item in node.values() if isinstance(node, Mapping) else node:
            yield from _alternatives(item, values)


def _marks(node: Any) -> Iterator[_Mark]:
    if isinstance(node, _Mark):
        yield node
        yield from _marks(node.options)
    elif isinstance(node, Mapping):
        yield from _marks(list(node.values()))
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _marks(item)
