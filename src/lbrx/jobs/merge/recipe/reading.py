"""Reading typed things out of a YAML tree, each with an error that names the line and the expectation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import nearest
from lbrx.jobs.merge.recipe.yaml_lines import RecipeError, RecipeLine, YamlList, YamlMap, YamlNode, YamlScalar, describe

_MISSPELT = 0.7  # a key that is less similar to a known one holds something else, such as an anchor
WITHOUT_EFFECT = frozenset(
    [
        *("consensus_method", "density", "embed_slerp", "int8_mask", "lambda", "layer_range", "merge_method"),
        *("normalize", "random_seed", "rescale", "residual_weight", "t", "weight"),
    ]
)
"""Names that published recipes have in places without effect. They are not misspellings."""


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
    """A mapping that has all required keys. Unknown keys are ignored with a warning, as in mergekit.

    A key that looks like a misspelt known one is an error; ``elsewhere`` says where further keys belong.
    """
    mapping = read_open_map(node, what)
    for key, location in mapping.key_locations.items():
        if elsewhere is not None and key in elsewhere:
            raise location.error(f"unknown key {key!r}; it belongs to {elsewhere[key]}")
        if key in keys:
            continue
        if key not in WITHOUT_EFFECT and nearest(key, keys, _MISSPELT):
            raise unknown_name(location, "key", key, keys)
        hint = "; parameters belong in 'parameters'" if "parameters" in keys and key in WITHOUT_EFFECT else ""
        mapping.ignored.append(f"{location}: the key {key!r} of {what} has no effect{hint}")
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


def read_int(node: YamlNode, what: str, minimum: int, maximum: int | None = None) -> int:
    """A whole number within bounds."""
    if not isinstance(node, YamlScalar) or type(node.value) is not int:
        raise wrong_type(node, what, "a whole number")
    if node.value < minimum:
        raise node.location.error(f"{what} must be at least {minimum}, found {node.text}")
    if maximum is not None and node.value > maximum:
        raise node.location.error(f"{what} must be at most {maximum}, found {node.text[:60]}")
    return node.value


def read_bool(node: YamlNode, what: str) -> bool:
    """True or false."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, bool):
        raise wrong_type(node, what, "true or false")
    return node.value


@dataclass(frozen=True, slots=True)
class LoraRef:
    """A LoRA adapter: a directory or repository, and perhaps a revision of it.

    >>> str(LoraRef("adapters/math", "v2"))
    'adapters/math@v2'
    """

    path: str
    revision: str | None = None

    def __str__(self) -> str:
        return _joined(self.path, self.revision)


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model: a directory, file, repository or earlier stage, with adapters on top if there are some.

    ``architecture`` replaces the architecture that the model's config names.

    >>> ref = ModelRef("models/a", "main", LoraRef("adapters/math"))
    >>> str(ref)
    'models/a@main+adapters/math'
    >>> parse_reference(str(ref)) == ref
    True
    """

    path: str
    revision: str | None = None
    lora: LoraRef | None = None
    architecture: str | None = None
    more_loras: tuple[LoraRef, ...] = ()  # on top of the first one

    @property
    def loras(self) -> tuple[LoraRef, ...]:
        """All adapters, in the order in which they are applied."""
        return () if self.lora is None else (self.lora, *self.more_loras)

    def __str__(self) -> str:
        return "+".join(map(str, (_joined(self.path, self.revision), *self.loras)))


def parse_reference(text: str, location: RecipeLine | None = None) -> ModelRef:
    """Parse a reference such as ``path@revision+lora@revision+lora``.

    A path that itself has an ``@`` or a ``+`` can only be written as a mapping.

    >>> parse_reference("mistral-7b@main").revision
    'main'
    """
    location = location or RecipeLine("reference", 1)
    model, *loras = text.split("+")
    path, revision = _split_revision(model, text, location)
    if not loras:
        return ModelRef(path, revision)
    first, *more = [LoraRef(*_split_revision(lora, text, location)) for lora in loras]
    return ModelRef(path, revision, first, more_loras=tuple(more))


def read_reference(node: YamlNode, what: str) -> ModelRef:
    """The reference in a node: text, or ``{model: ..., lora: ..., override_architecture: ...}``.

    >>> from lbrx.jobs.merge.recipe.yaml_lines import parse_documents
    >>> (node,) = parse_documents("{model: {path: models/a+b, revision: main}, lora: adapters/math}")
    >>> read_reference(node, "'model'").lora
    LoraRef(path='adapters/math', revision=None)
    """
    if isinstance(node, YamlScalar) and isinstance(node.value, str):
        return parse_reference(read_text(node, what), node.location)
    if not isinstance(node, YamlMap):
        raise wrong_type(node, what, "a model, as text or a mapping")
    mapping = read_map(node, what, ("model", "lora", "override_architecture"), required=("model",))
    path, revision = _read_path(mapping.entries["model"], "'model'")
    lora = optional(mapping, "lora")
    architecture = optional(mapping, "override_architecture")
    listed = [] if lora is None else lora.items if isinstance(lora, YamlList) else [lora]
    loras = [LoraRef(*_read_path(item, "'lora'")) for item in listed]
    return ModelRef(
        path,
        revision,
        lora=loras[0] if loras else None,
        architecture=None if architecture is None else read_text(architecture, "'override_architecture'"),
        more_loras=tuple(loras[1:]),
    )


def _read_path(node: YamlNode, what: str) -> tuple[str, str | None]:
    """A path and a revision: ``path[@revision]``, or ``{path: ..., revision: ...}``."""
    if isinstance(node, YamlMap):
        mapping = read_map(node, what, ("path", "revision"), required=("path",))
        revision = optional(mapping, "revision")
        return (
            read_text(mapping.entries["path"], "'path'"),
            None if revision is None else read_text(revision, "'revision'"),
        )
    text = read_text(node, what)
    return _split_revision(text, text, node.location)


def _split_revision(part: str, whole: str, location: RecipeLine) -> tuple[str, str | None]:
    scheme, separator, rest = part.partition("://")
    host, slash, rest = rest.partition("/") if separator else ("", "", part)  # a host may have a user before an @
    path, *revisions = rest.split("@")
    path = f"{scheme}{separator}{host}{slash}{path}" if separator else path
    if len(revisions) > 1:
        raise location.error(f"model {whole!r} has {len(revisions)} revisions; expected 'path[@revision]'")
    if not path or "" in revisions:
        raise location.error(f"model {whole!r} has an empty part; expected 'path[@revision][+lora[@revision]]'")
    return path, revisions[0] if revisions else None


def _joined(path: str, revision: str | None) -> str:
    return path if revision is None else f"{path}@{revision}"
