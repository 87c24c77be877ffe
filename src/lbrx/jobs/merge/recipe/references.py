"""References to models: ``path[@revision][+lora[@revision]]``, or the same as a mapping."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.recipe.errors import RecipeLine
from lbrx.jobs.merge.recipe.reading import optional, read_map, read_text, wrong_type
from lbrx.jobs.merge.recipe.yaml_lines import YamlMap, YamlNode, YamlScalar


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
    """A model: a directory, file, repository or earlier stage, with an adapter on top if there is one.

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

    def __str__(self) -> str:
        model = _joined(self.path, self.revision)
        return model if self.lora is None else f"{model}+{self.lora}"


def parse_reference(text: str, location: RecipeLine | None = None) -> ModelRef:
    """The reference that a text such as ``path@revision+lora@revision`` stands for.

    A path that itself has an ``@`` or a ``+`` can only be written as a mapping.

    >>> parse_reference("mistral-7b@main").revision
    'main'
    """
    location = location or RecipeLine("reference", 1)
    model, *loras = text.split("+")
    if len(loras) > 1:
        raise location.error(f"model {text!r} has {len(loras)} adapters; expected 'path[@revision][+lora[@revision]]'")
    path, revision = _split_revision(model, text, location)
    if not loras:
        return ModelRef(path, revision)
    return ModelRef(path, revision, LoraRef(*_split_revision(loras[0], text, location)))


def read_reference(node: YamlNode, what: str) -> ModelRef:
    """The reference in a node: text, or ``{model: ..., lora: ..., override_architecture: ...}``.

    >>> from lbrx.jobs.merge.recipe.yaml_lines import parse_documents
    >>> (node,) = parse_documents("{model: {path: models/a+b, revision: main}, lora: adapters/math}")
    >>> read_reference(node, "'model'")
    ModelRef(path='models/a+b', revision='main', lora=LoraRef(path='adapters/math', revision=None), architecture=None)
    """
    if isinstance(node, YamlScalar) and isinstance(node.value, str):
        return parse_reference(read_text(node, what), node.location)
    if not isinstance(node, YamlMap):
        raise wrong_type(node, what, "a model, as text or a mapping")
    mapping = read_map(node, what, ("model", "lora", "override_architecture"), required=("model",))
    path, revision = _read_path(mapping.entries["model"], "'model'")
    lora = optional(mapping, "lora")
    architecture = optional(mapping, "override_architecture")
    return ModelRef(
        path,
        revision,
        lora=None if lora is None else LoraRef(*_read_path(lora, "'lora'")),
        architecture=None if architecture is None else read_text(architecture, "'override_architecture'"),
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
    path, *revisions = part.split("@")
    if len(revisions) > 1:
        raise location.error(f"model {whole!r} has {len(revisions)} revisions; expected 'path[@revision]'")
    if not path or "" in revisions:
        raise location.error(f"model {whole!r} has an empty part; expected 'path[@revision][+lora[@revision]]'")
    return path, revisions[0] if revisions else None


def _joined(path: str, revision: str | None) -> str:
    return path if revision is None else f"{path}@{revision}"
