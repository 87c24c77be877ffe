"""The normal form of a recipe: modules -> slices -> sources, all frozen.

A source without a layer range means all layers of its model; it comes from the ``models`` form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal, TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.recipe.reading import ModelRef
from lbrx.jobs.merge.recipe.values import Value
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, RecipeLine
from lbrx.tensors.dtype import DType

Parameters: TypeAlias = FrozenMap[str, Value]

EVERY_MODULE = "*"
"""The module name of a recipe that does not name modules: it holds for each module of the model."""

NO_PARAMETERS: Parameters = FrozenMap()

_NOWHERE = RecipeLine("recipe", 1)


@dataclass(frozen=True, slots=True)
class SliceSource:
    """One model's part in a slice: its layers ``[start, end)``, or all of them if ``layer_range`` is None.

    >>> SliceSource(ModelRef("models/a"), (2, 5)).layers
    3
    """

    model: ModelRef
    layer_range: tuple[int, int] | None = None
    parameters: Parameters = NO_PARAMETERS
    location: RecipeLine = field(default=_NOWHERE, compare=False)

    @property
    def layers(self) -> int | None:
        """How many layers the source has; None if that depends on its model."""
        return None if self.layer_range is None else self.layer_range[1] - self.layer_range[0]


@dataclass(frozen=True, slots=True)
class Slice:
    """Layers of the output, made from the layers of its sources.

    >>> Slice((SliceSource(ModelRef("models/a"), (0, 2)), SliceSource(ModelRef("models/b"), (1, 3)))).layers
    2
    """

    sources: tuple[SliceSource, ...]
    base_model: ModelRef | None = None  # overrides the recipe's
    parameters: Parameters = NO_PARAMETERS
    location: RecipeLine = field(default=_NOWHERE, compare=False)

    @property
    def layers(self) -> int | None:
        """How many layers the slice has; None if that depends on the models."""
        return self.sources[0].layers


@dataclass(frozen=True, slots=True)
class Module:
    """A part of a model with its own numbering of layers, such as the text decoder.

    >>> Module((Slice((SliceSource(ModelRef("models/a")),)),)).whole_model
    True
    """

    slices: tuple[Slice, ...]
    parameters: Parameters = NO_PARAMETERS
    location: RecipeLine = field(default=_NOWHERE, compare=False)

    @property
    def whole_model(self) -> bool:
        """Whether the module comes from ``models``: one slice over all layers."""
        return self.slices[0].layers is None


@dataclass(frozen=True, slots=True)
class ModelToken:
    """The embedding of one token of a model, by text or by id."""

    model: ModelRef
    token: str | None = None
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class ZeroToken:
    """An embedding of zeros."""


TokenSource: TypeAlias = ModelRef | ModelToken | ZeroToken


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """Where a token's embedding comes from; ``force`` replaces it even in the models that have the token.

    Without a source the usual rule holds: its only owner's row, else the base's, else the mean.
    """

    source: TokenSource | None = None
    force: bool = False
    location: RecipeLine = field(default=_NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """How the vocabulary of the output is built.

    >>> TokenizerSpec().source
    'union'
    """

    source: Literal["union", "base"] | ModelRef = "union"
    tokens: FrozenMap[str, TokenSpec] = field(default_factory=FrozenMap)
    pad_to_multiple_of: int | None = None
    location: RecipeLine = field(default=_NOWHERE, compare=False)

    def models(self) -> Iterator[ModelRef]:
        """The models that the vocabulary is taken from, in recipe order."""
        if isinstance(self.source, ModelRef):
            yield self.source
        for token in self.tokens.values():
            if isinstance(token.source, ModelRef):
                yield token.source
            elif isinstance(token.source, ModelToken):
                yield token.source.model


@dataclass(frozen=True, slots=True)
class Recipe:
    """One merge.

    ``uses`` names the stages of the same file whose results are inputs. ``warnings`` are sentences about
    settings that are valid and change nothing.

    >>> slices = (Slice((SliceSource(ModelRef("models/a")), SliceSource(ModelRef("models/b")))),)
    >>> recipe = Recipe("linear", FrozenMap({EVERY_MODULE: Module(slices)}))
    >>> str(recipe.donor), recipe.whole_model
    ('models/a', True)
    """

    method: str
    modules: FrozenMap[str, Module]
    base_model: ModelRef | None = None
    dtype: DType | None = None
    out_dtype: DType | None = None
    parameters: Parameters = NO_PARAMETERS
    tokenizer: TokenizerSpec | None = None
    chat_template: str | None = None
    name: str | None = None
    uses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)
    location: RecipeLine = field(default=_NOWHERE, compare=False)
    method_location: RecipeLine = field(default=_NOWHERE, compare=False)
    base_location: RecipeLine = field(default=_NOWHERE, compare=False)

    def module(self, name: str) -> Module:
        """What the recipe says about a module of the architecture."""
        module = self.modules.get(name) or self.modules.get(EVERY_MODULE)
        if module is None:
            raise self.location.error(f"the recipe has no module {name!r}; it has {', '.join(self.modules)}")
        return module

    def base_of(self, part: Slice) -> ModelRef | None:
        """The base model of a slice: its own, or the recipe's."""
        return part.base_model or self.base_model

    @property
    def whole_model(self) -> bool:
        """Whether no module names layer ranges."""
        return all(module.whole_model for module in self.modules.values())

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """Every model whose weights the merge may read, once each, in recipe order."""
        models: dict[ModelRef, None] = {}
        for module in self.modules.values():
            for part in module.slices:
                models.update((source.model, None) for source in part.sources)
                if part.base_model is not None:
                    models[part.base_model] = None
        if self.base_model is not None:
            models[self.base_model] = None
        return tuple(models)

    @property
    def donor(self) -> ModelRef:
        """The model that config and tokenizer are copied from: the base, else the first in recipe order."""
        return self.base_model or self.models[0]

    @property
    def output_dtype(self) -> DType | None:
        """The element type to write: ``out_dtype``, else ``dtype``, else None for that of the inputs."""
        return self.out_dtype or self.dtype
