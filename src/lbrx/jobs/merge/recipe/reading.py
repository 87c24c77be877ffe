"""Reading typed things out of a YAML tree, each with an error that names the line and the expectation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbrx.errors import nearest
from lbrx.jobs.merge.recipe.errors import RecipeError, RecipeLine
from lbrx.jobs.merge.recipe.yaml_lines import YamlList, YamlMap, YamlNode, YamlScalar, describe


def unknown_name(location: RecipeLine, noun: str, name: str, known: Iterable[str], owner: str = "") -> RecipeError:
    """An error for a name that is not one of the known ones, with the nearest of them or all of them.

    >>> str(unknown_name(RecipeLine("recipe.yml", 12), "key", "wieght", ["weight", "density"]))
    "recipe.yml:12: unknown key 'wieght'; did you mean 'weight'?"
    """
    names = sorted(known)
    expected = f"; expected {'one of ' * (len(names) > 1)}{', '.join(names)}" if names else "; it takes none"
    return location.error(f"unknown {noun} {name!r}{owner}{nearest(name, names) or expected}")


def wrong_type(node: YamlNode, what: str, expected: str) -> RecipeError:
    """An error for a node that is not what it should be."""
    return node.location.error(f"{what} must be {expected}, found {describe(node)}")


def is_null(node: YamlNode) -> bool:
    """Whether a node is an explicit or implied null."""
    return isinstance(node, YamlScalar) and node.value is None


def read_map(
    node: YamlNode,
    what: str,
    keys: Collection[str],
    required: Iterable[str] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> YamlMap:
    """A mapping that has only known keys, and all the required ones; ``elsewhere`` says where other keys belong."""
    mapping = read_open_map(node, what)
    for key in mapping.entries:
        if elsewhere is not None and key in elsewhere:
            raise mapping.key_locations[key].error(f"unknown key {key!r}; it belongs to {elsewhere[key]}")
        if key not in keys:
            raise unknown_name(mapping.key_locations[key], "key", key, keys)
    for key in required:
        if key not in mapping.entries:
            raise mapping.location.error(f"{what} has no {key!r}, which it needs")
    return mapping


def read_open_map(node: YamlNode, what: str) -> YamlMap:
    """A mapping with any keys."""
    if not isinstance(node, YamlMap):
        raise wrong_type(node, what, "a mapping")
    return node


def optional(mapping: YamlMap, key: str) -> YamlNode | None:
    """The node of a key, or None if the key is absent or null."""
    node = mapping.entries.get(key)
    return None if node is None or is_null(node) else node


def read_list(node: YamlNode, what: str) -> tuple[YamlNode, ...]:
    """The items of a list that is not empty."""
    if not isinstance(node, YamlList):
        raise wrong_type(node, what, "a list")
    if not node.items:
        raise node.location.error(f"{what} is empty; expected at least one item")
    return node.items


def read_text(node: YamlNode, what: str) -> str:
    """Text that is not empty."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, str):
        error = wrong_type(node, what, "text")
        if isinstance(node, YamlScalar) and node.value is not None:
            raise node.location.error(f"{error.problem}; quote it: '{node.text}'")
        raise error
    if not node.value:
        raise node.location.error(f"{what} must be text, found an empty text")
    return node.value


def read_int(node: YamlNode, what: str, minimum: int) -> int:
    """A whole number that is not too small."""
    if not isinstance(node, YamlScalar) or type(node.value) is not int:
        raise wrong_type(node, what, "a whole number")
    if node.value < minimum:
        raise node.location.error(f"{what} must be at least {minimum}, found {node.text}")
    return node.value


def read_bool(node: YamlNode, what: str) -> bool:
    """True or false."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, bool):
        raise wrong_type(node, what, "true or false")
    return node.value
