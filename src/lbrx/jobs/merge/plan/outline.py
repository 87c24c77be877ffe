"""The tensors that the output of a recipe has, and the names of what each is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.merge.recipe import EVERY_MODULE, ModelRef, Module, Recipe, Slice, SliceSource, layer_position
from lbrx.models.architectures import Naming, TensorRole
from lbrx.models.architectures.stacks import PROJECTORS

_LANGUAGE_MODEL_NAMES = ("default", "decoder", "text_decoder", "language_model", "text_model")
_VISION_MODEL_NAMES = ("vision_tower", "visual", "vision_model")  # mergekit calls each of them by the first name


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of the output: which slice it belongs to, and each source's name of it (None if it lacks it)."""

    role: TensorRole  # under the output's name and layer
    module: str  # the recipe's module
    slice_index: int
    part: Slice
    names: tuple[str | None, ...]  # one per source of the slice
    t: float


@dataclass(frozen=True)
class Roles:
    """The tensors of one model by position."""

    model: InputModel
    naming: Naming  # of the output

    @cached_property
    def _all(self) -> list[TensorRole]:
        return self.model.architecture.tensors(self.model.config, self.model.infos)

    @cached_property
    def modules(self) -> dict[str, None]:
        """The modules of the model, "" for the language model."""
        return {role.module: None for role in self._all}

    @cached_property
    def by_layer(self) -> dict[int, list[TensorRole]]:
        roles: dict[int, list[TensorRole]] = {}
        for role in self._all:
            if role.layer is not None:
                roles.setdefault(role.layer, []).append(role)
        return roles

    @cached_property
    def outside(self) -> list[TensorRole]:
        """The tensors before and after the layers."""
        return [role for role in self._all if role.layer is None]

    @property
    def predicting(self) -> list[TensorRole]:
        """The tensors of layers that predict further tokens, which follow the others."""
        return [role for layer, roles in self.by_layer.items() if layer >= self.model.layer_count for role in roles]

    def in_output(self, role: TensorRole, layer: int | None = None) -> TensorRole:
        """The role as the output has it, in another layer and with the output's prefixes."""
        architecture, name = self.model.architecture, role.name
        if role.layer is not None and layer is not None and layer != role.layer:
            name = architecture.rename_layer(name, role.layer, layer)
        name = architecture.translate(name, self.naming)
        return _moved(role, name, layer)

    def name_of(self, output_name: str, output_layer: int | None, own_layer: int | None) -> str | None:
        """The model's name of a tensor of the output."""
        if output_layer is not None and own_layer is not None and output_layer != own_layer:
            output_name = self.model.architecture.rename_layer(output_name, output_layer, own_layer)
        return self.model.find(output_name)


def _moved(role: TensorRole, name: str, layer: int | None) -> TensorRole:
    if name == role.name and layer == role.layer:
        return role
    return TensorRole(
        name,
        role.part,
        layer,
        role.shape,
        role.dimensions,
        optional=role.optional,
        is_buffer=role.is_buffer,
        tied_to=role.tied_to,
        is_vocabulary=role.is_vocabulary,
        is_known=role.is_known,
        module=role.module,
    )


class Outline:
    """Walks a recipe: every tensor of the output, before the layers, layer by layer, after the layers."""

    def __init__(self, recipe: Recipe, models: Mapping[ModelRef, InputModel]) -> None:
        donor = models[recipe.donor]
        naming = donor.architecture.naming(donor.infos)
        self.recipe = recipe
        self.donor = Roles(donor, naming)
        self.roles = {ref: Roles(model, naming) for ref, model in models.items()}
        self.module_names = self._module_names()

    @cached_property
    def language_module(self) -> Module:
        return self.recipe.module(self.module_names[""])

    def tensors(self) -> Iterator[OutputTensor]:
        """All tensors of the output, each once."""
        yield from self._outside("pre")
        yield from self._layers()
        yield from self._outside("post")

    def layer_sources(self) -> list[tuple[SliceSource, int]]:
        """For every layer of the output the source that speaks for it (the base, else the first), and its layer."""
        sources = []
        for part in self.language_module.slices:
            base = self.recipe.base_of(part)
            speaker = next((source for source in part.sources if source.model == base), part.sources[0])
            first, end = self.layer_range(speaker)
            sources += [(speaker, layer) for layer in range(first, end)]
        return sources

    def layer_range(self, source: SliceSource) -> tuple[int, int]:
        return source.layer_range or (0, self.roles[source.model].model.layer_count)

    def _module_names(self) -> dict[str, str]:
        """The recipe's module for each of the models' modules."""
        known = dict.fromkeys(module for roles in self.roles.values() for module in roles.modules) | {"": None}
        if EVERY_MODULE in self.recipe.modules:
            return dict.fromkeys(known, EVERY_MODULE)
        names: dict[str, str] = {}
        for name, module in self.recipe.modules.items():
            matching = [path for path in known if _is_called(path, name)]
            if not matching:
                expected = ", ".join(repr(path or _LANGUAGE_MODEL_NAMES[0]) for path in known)
                raise module.location.error(f"the models have no module {name!r}; expected {expected}")
            if matching[0] and not module.whole_model:
                raise module.location.error(f"the layers of module {name!r} cannot be sliced; expected 'models'")
            names.update(dict.fromkeys(matching, name))
        for path in known:
            if path not in names and path.rpartition(".")[2] in PROJECTORS:  # merged like its tower, or like the text
                parent = path.rpartition(".")[0]
                neighbour = names.get(parent) or names.get("")
                if neighbour is not None:
                    names[path] = neighbour
        missing = [path or _LANGUAGE_MODEL_NAMES[0] for path in known if path not in names]
        if missing:
            raise self.recipe.location.error(
                f"the recipe does not say how to merge the module {missing[0]!r}; expected it among 'modules'"
            )
        return names

    def _outside(self, part_name: str) -> Iterator[OutputTensor]:
        seen: set[str] = set()
        for module, recipe_module in self.module_names.items():
            slices = self.recipe.module(recipe_module).slices
            slice_index = 0 if part_name == "pre" else len(slices) - 1
            part = slices[slice_index]
            sources = [self.roles[source.model] for source in part.sources]
            for roles in (*sources, self.donor):
                for role in roles.outside:
                    output = roles.in_output(role)
                    if role.part != part_name or role.module != module or output.name in seen:
                        continue
                    seen.add(output.name)
                    names = tuple(source.name_of(output.name, None, None) for source in sources)
                    yield OutputTensor(output, recipe_module, slice_index, part, names, 0.0)

    def _layers(self) -> Iterator[OutputTensor]:
        output_layer = 0
        for slice_index, part in enumerate(self.language_module.slices):
            ranges = [self.layer_range(source) for source in part.sources]
            count = ranges[0][1] - ranges[0][0]
            for step in range(count):
                layers = [first + step for first, _ in ranges]
                yield from self._layer(slice_index, part, layers, output_layer, layer_position(step, count))
                output_layer += 1
        if self.language_module.whole_model:
            sources = [self.roles[source.model].model for source in part.sources]
            for step in range(max(model.prediction_count for model in sources)):
                layers = [model.layer_count + step for model in sources]
                yield from self._layer(slice_index, part, layers, output_layer + step, 1.0)

    def _layer(
        self, slice_index: int, part: Slice, layers: list[int], output_layer: int, t: float
    ) -> Iterator[OutputTensor]:
        sources = [self.roles[source.model] for source in part.sources]
        seen: set[str] = set()
        for roles, layer in zip(sources, layers, strict=True):
            for role in roles.by_layer.get(layer, ()):
                output = roles.in_output(role, output_layer)
                if output.name in seen:
                    continue
                seen.add(output.name)
                names = tuple(
                    source.name_of(output.name, output_layer, own) for source, own in zip(sources, layers, strict=True)
                )
                yield OutputTensor(output, self.module_names[""], slice_index, part, names, t)


def _is_called(path: str, name: str) -> bool:
    """Whether a recipe may call a module so: by its path, its last component, or a word for the language model."""
    if not path:
        return name in _LANGUAGE_MODEL_NAMES
    last = path.rpartition(".")[2]
    if name == PROJECTORS[0]:
        return last in PROJECTORS
    return name in (path, last) or (name == _VISION_MODEL_NAMES[0] and last in _VISION_MODEL_NAMES)
