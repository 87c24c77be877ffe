"""YAML text to a tree that remembers the line of everything, within fixed bounds.

Only plain data is read: mappings with text keys, lists, and null, bool, number and text scalars. Anchors,
aliases and merge keys (``<<``) are expanded. Of duplicate keys the last one counts. Other tags and anything that
would grow without bound are errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TypeAlias, TypeVar

import yaml

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError

Key = TypeVar("Key")
Item = TypeVar("Item", covariant=True)


class FrozenMap(Mapping[Key, Item]):
    """An immutable mapping in insertion order.

    >>> weights = FrozenMap({"weight": 0.5})
    >>> weights["weight"], len(weights), weights == {"weight": 0.5}
    (0.5, 1, True)
    """

    __slots__ = ("_items",)
    _items: dict[Key, Item]

    def __init__(self, items: Mapping[Key, Item] | None = None) -> None:
        object.__setattr__(self, "_items", dict(items or {}))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenMap cannot be changed: {name!r} was set")

    def __getitem__(self, key: Key) -> Item:
        return self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __reduce__(self) -> tuple[type[FrozenMap[Key, Item]], tuple[dict[Key, Item]]]:
        return type(self), (self._items,)


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A line of a recipe; ``str`` gives ``recipe.yml:12``.

    >>> str(RecipeLine("recipe.yml", 12))
    'recipe.yml:12'
    """

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"

    def error(self, problem: str) -> RecipeError:
        """An error about this line, to be raised by the caller.

        >>> str(RecipeLine("recipe.yml", 3).error("the document is empty"))
        'recipe.yml:3: the document is empty'
        """
        return RecipeError(problem, self)


class RecipeError(UsageError):
    """A recipe says something that cannot be done; the message begins with its file and line.

    >>> RecipeError("unknown key 'dtpye'", RecipeLine("recipe.yml", 4)).location.line
    4
    """

    def __init__(self, problem: str, location: RecipeLine) -> None:
        super().__init__(problem, location)
        self.problem = problem
        self.location = location

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"


MAX_RECIPE_BYTES = 256 * 1024
MAX_NODES = 20_000  # after aliases are expanded
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_MOST_BITS = 4096
_MERGE = _TAG + "merge"
# YAML 1.1 has types for dates and a lone "="; in a recipe both are text.
_TEXT_TAGS = frozenset({_TAG + "str", _TAG + "timestamp", _TAG + "value"})


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """One scalar: its value by YAML 1.1's rules, and the characters it was written with."""

    value: bool | int | float | str | None
    text: str
    location: RecipeLine


@dataclass(frozen=True, slots=True)
class YamlList:
    """A list of nodes."""

    items: tuple[YamlNode, ...]
    location: RecipeLine


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A mapping from text to nodes, with the line of each key.

    ``ignored`` is one list for the whole document: warnings about what has no effect in it.
    """

    entries: Mapping[str, YamlNode]
    key_locations: Mapping[str, RecipeLine]
    location: RecipeLine
    ignored: list[str] = field(default_factory=list, compare=False)


YamlNode: TypeAlias = YamlScalar | YamlList | YamlMap


def parse_documents(text: str, source: str = "recipe.yml") -> tuple[YamlNode, ...]:
    """Every document of a YAML stream.

    >>> (document,) = parse_documents("merge_method: linear")
    >>> document.entries["merge_method"].value, document.key_locations["merge_method"].line
    ('linear', 1)
    """
    check_size(len(text.encode("utf-8", errors="surrogatepass")), source)
    return tuple(_documents(text, source))


def check_size(size_bytes: int, source: str) -> None:
    """Raise an error if a recipe is larger than any sensible one."""
    if size_bytes > MAX_RECIPE_BYTES:
        raise RecipeLine(source, 1).error(f"the recipe is too large; expected at most {MAX_RECIPE_BYTES} bytes")


def _documents(text: str, source: str) -> Iterator[YamlNode]:
    loader = None
    try:
        loader = _BoundedLoader(text, source)
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield _Expansion(loader, source).expand(node, depth=1)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise RecipeLine(source, line).error(f"not valid YAML: {_reason(error)}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeLine(source, line).error(f"not valid YAML: {error.reason}") from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, RecipeError) or loader is None:
            raise
        # The scanner passes escapes and version numbers on to chr() and int() without a look at their size.
        problem = "not valid YAML: an escape or a number is out of range"
        raise RecipeLine(source, loader.line + 1).error(problem) from error


def _reason(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part) or str(error)


class _BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, with a bound on nesting (its composer is recursive)."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.source = source
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecipeLine(self.source, self.line + 1).error(_too_deep())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _too_deep() -> str:
    return f"nested too deeply; expected at most {MAX_DEPTH} levels"


class _Expansion:
    """The conversion of one document, counting nodes so that aliases cannot multiply without end."""

    def __init__(self, loader: _BoundedLoader, source: str) -> None:
        self._loader = loader
        self._source = source
        self._nodes = 0
        self._ignored: list[str] = []

    def expand(self, node: yaml.Node, depth: int) -> YamlNode:
        location = self._location(node)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise location.error(f"too many values after aliases are expanded; expected at most {MAX_NODES}")
        if depth > MAX_DEPTH:  # only an alias to its own parent gets here
            raise location.error(_too_deep())
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, location)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return YamlList(tuple(self.expand(item, depth + 1) for item in node.value), location)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, location, depth)
        raise location.error(f"the tag {_short(node.tag)!r} is not supported; expected plain YAML")

    def _mapping(self, node: yaml.MappingNode, location: RecipeLine, depth: int) -> YamlMap:
        entries: dict[str, YamlNode] = {}
        key_locations: dict[str, RecipeLine] = {}
        inherited: list[YamlMap] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                inherited.extend(_merged_maps(self.expand(value_node, depth + 1)))
                continue
            key = self._key(key_node, depth)
            if key in entries:
                line = self._location(key_node).line
                self._ignored.append(f"{key_locations[key]}: key {key!r} is given again on line {line}, which counts")
            entries[key] = self.expand(value_node, depth + 1)
            key_locations[key] = self._location(key_node)
        for parent in inherited:  # own keys win over inherited ones, earlier parents over later ones
            for key, value in parent.entries.items():
                if key not in entries:
                    entries[key] = value
                    key_locations[key] = parent.key_locations[key]
        return YamlMap(FrozenMap(entries), FrozenMap(key_locations), location, self._ignored)

    def _key(self, node: yaml.Node, depth: int) -> str:
        key = self.expand(node, depth + 1)
        if not isinstance(key, YamlScalar):
            raise key.location.error(f"a key must be text, found {describe(key)}")
        if not isinstance(key.value, str):
            raise key.location.error(f"a key must be text, found {describe(key)}; quote it: '{key.text}'")
        return key.value

    def _scalar(self, node: yaml.ScalarNode, location: RecipeLine) -> YamlScalar:
        return YamlScalar(self._scalar_value(node, location), node.value, location)

    def _scalar_value(self, node: yaml.ScalarNode, location: RecipeLine) -> bool | int | float | str | None:
        if node.tag in _TEXT_TAGS or node.tag == _MERGE:
            return str(node.value)
        try:
            match node.tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return bool(self._loader.construct_yaml_bool(node))
                case "int":
                    return _bounded(int(self._loader.construct_yaml_int(node)))
                case "float":
                    return float(self._loader.construct_yaml_float(node))
        except (ValueError, KeyError, IndexError, ArithmeticError) as error:
            tag = _short(node.tag)
            raise location.error(f"{_shortened(node.value)} is not a value of the type {tag!r}") from error
        raise location.error(f"the tag {_short(node.tag)!r} is not supported; expected plain YAML")

    def _location(self, node: yaml.Node) -> RecipeLine:
        return RecipeLine(self._source, node.start_mark.line + 1)


def _merged_maps(node: YamlNode) -> tuple[YamlMap, ...]:
    maps = node.items if isinstance(node, YamlList) else (node,)
    for item in maps:
        if not isinstance(item, YamlMap):
            raise item.location.error(f"'<<' takes a mapping or a list of mappings, found {describe(item)}")
    return tuple(item for item in maps if isinstance(item, YamlMap))


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _bounded(number: int) -> int:
    """A whole number that Python can print."""
    if number.bit_length() > _MOST_BITS:
        raise ValueError(f"a number of {number.bit_length()} bits")
    return number


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def describe(node: YamlNode) -> str:
    """What a node is, for the end of an error message.

    >>> (document,) = parse_documents("[1, yes, {a: 1}]")
    >>> describe(document), *[describe(item) for item in document.items[1:]]
    ('a list', 'the boolean yes', 'a mapping')
    """
    match node:
        case YamlList():
            return "a list"
        case YamlMap():
            return "a mapping"
        case YamlScalar(value=None):
            return "nothing"
        case YamlScalar(value=bool()):
            return f"the boolean {node.text}"
        case YamlScalar(value=str()):
            return f"the text {_shortened(node.text)}"
        case _:
            return f"the number {node.text if len(node.text) <= 60 else node.text[:57] + '...'}"
