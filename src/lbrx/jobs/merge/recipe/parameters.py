"""What methods take, and what a recipe gives them for one tensor.

A parameter is looked up in the source (if it is per model), the slice, the module and the recipe, in that
order; a scope whose filters do not match the tensor's name is passed over; the default comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.jobs.merge.recipe.schema import Module, Parameters, Recipe, Slice
from lbrx.jobs.merge.recipe.values import ParameterType, Scalar, coerce
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, RecipeLine


class Required(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required.REQUIRED

BasePolicy: TypeAlias = Literal["required", "optional", "ignored", "forbidden"]
Resolved: TypeAlias = FrozenMap[str, Scalar | None]


@dataclass(frozen=True, slots=True)
class MethodParameter:
    """One parameter of a merge method.

    Parameters that are not ``per_model`` are shared: a recipe cannot set them for one model. A parameter
    that is not ``effective`` is accepted because mergekit accepts it, and changes nothing.

    >>> density = MethodParameter("density", "float", 1.0, per_model=True, minimum=0, maximum=1)
    >>> density.read("5e-1", RecipeLine("recipe.yml", 3))
    0.5
    """

    name: str
    type: ParameterType
    default: Scalar | Required | None = REQUIRED
    per_model: bool = False
    gradient: bool = True
    minimum: float | None = None
    maximum: float | None = None
    effective: bool = True

    def __post_init__(self) -> None:
        if self.type == "int" and self.gradient:
            raise UsageError(f"parameter {self.name!r} is a whole number; expected gradient=False")

    def read(self, raw: Scalar, location: RecipeLine) -> Scalar:
        """A scalar of a recipe as a value of this parameter, or an error about its kind or range."""
        value = coerce(self.type, raw, location, self.name)
        if isinstance(value, int | float):
            below = self.minimum is not None and value < self.minimum
            above = self.maximum is not None and value > self.maximum
            if below or above:
                raise location.error(f"{self.name!r} must be {self._range()}, found {raw}")
        return value

    def _range(self) -> str:
        if self.minimum is None:
            return f"at most {self.maximum:g}"
        if self.maximum is None:
            return f"at least {self.minimum:g}"
        return f"between {self.minimum:g} and {self.maximum:g}"


@dataclass(frozen=True, slots=True)
class TensorParameters:
    """The parameters for one tensor; ``per_model`` has None in the place of a base that takes none."""

    shared: Resolved
    per_model: tuple[Resolved | None, ...]

    def across_models(self, name: str) -> tuple[Scalar | None, ...]:
        """One per-model parameter, for the models that take parameters.

        >>> TensorParameters(FrozenMap(), (FrozenMap({"weight": 0.5}), None)).across_models("weight")
        (0.5,)
        """
        return tuple(values[name] for values in self.per_model if values is not None)


@dataclass(frozen=True, slots=True)
class Violation:
    """Why parameters cannot go together, and which source it is about if it is about one."""

    problem: str
    source_index: int | None = None


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """What a merge method takes.

    ``needs_base`` is "ignored" where the base model is an input like any other. ``model_count`` is the least
    and the greatest number (None: no limit) of models besides the base, or of all of them where the base
    is ignored. ``constraint`` looks at the resolved parameters of a tensor together.

    >>> slerp = MethodSpec("slerp", (MethodParameter("t", "float"),), "required", (1, 1))
    >>> slerp.find("t").default, slerp.find("weight")
    (REQUIRED, None)
    """

    name: str
    parameters: tuple[MethodParameter, ...] = ()
    needs_base: BasePolicy = "ignored"
    model_count: tuple[int, int | None] = (1, None)
    constraint: Callable[[TensorParameters], Violation | None] | None = None

    def find(self, name: str) -> MethodParameter | None:
        """The parameter of a name, or None."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


Lookup: TypeAlias = Callable[[str], MethodSpec | None]
"""A method's description by name; None if its parameters are not known yet, UsageError if there is no such method."""


def base_index(recipe: Recipe, spec: MethodSpec, part: Slice) -> int | None:
    """Which source of a slice the method treats as the base; None if it treats none so.

    >>> from lbrx.jobs.merge.recipe import parse_recipes, method_spec
    >>> (recipe,) = parse_recipes("{merge_method: slerp, base_model: b, models: [{model: a}], parameters: {t: 0}}")
    >>> base_index(recipe, method_spec("slerp"), recipe.module("default").slices[0])
    1
    """
    base = recipe.base_of(part)
    if spec.needs_base == "ignored" or base is None:
        return None
    return next((index for index, source in enumerate(part.sources) if source.model == base), None)


def scopes(recipe: Recipe, module: Module, part: Slice, source_index: int | None) -> Iterator[Parameters]:
    """The scopes that may set a parameter, nearest first; ``source_index`` is None for a shared one."""
    if source_index is not None:
        yield part.sources[source_index].parameters
    yield part.parameters
    yield module.parameters
    yield recipe.parameters


def resolve(
    recipe: Recipe,
    parameter: MethodParameter,
    *,
    module: str,
    slice_index: int,
    source_index: int | None,
    tensor_name: str,
    t: float,
) -> Scalar | None:
    """The value of one parameter for one tensor.

    ``source_index`` is None for a shared parameter. ``tensor_name`` is the name in the source's model for a
    per-model parameter, and in the output for a shared one. ``t`` is the layer's position in its slice
    (see ``layer_position``), 0 for tensors outside the layers.

    >>> from lbrx.jobs.merge.recipe import parse_recipes, method_spec
    >>> (recipe,) = parse_recipes("{merge_method: slerp, base_model: b, models: [{model: a}], parameters: {t: [0, 1]}}")
    >>> t = method_spec("slerp").find("t")
    >>> resolve(recipe, t, module="default", slice_index=0, source_index=None, tensor_name="x", t=0.5)
    0.5
    """
    found_module = recipe.module(module)
    part = found_module.slices[slice_index]
    for scope in scopes(recipe, found_module, part, source_index):
        if parameter.name in scope:
            value = scope[parameter.name].evaluate(parameter.type, tensor_name, t)
            if value is not None:
                return value
    if not isinstance(parameter.default, Required):
        return parameter.default
    location = part.location if source_index is None else part.sources[source_index].location
    owner = "" if source_index is None else f" of model {str(part.sources[source_index].model)!r}"
    raise location.error(
        f"no value of {parameter.name!r} applies to the tensor {tensor_name!r}{owner}; "
        f"expected a filter that matches it, or a value without a filter"
    )


def resolve_tensor(
    recipe: Recipe,
    spec: MethodSpec,
    *,
    module: str,
    slice_index: int,
    input_names: Sequence[str],
    output_name: str,
    t: float,
) -> TensorParameters:
    """All parameters for one tensor, checked against each other; ``input_names`` has one name per source.

    >>> from lbrx.jobs.merge.recipe import parse_recipes, method_spec
    >>> text = "{merge_method: linear, models: [{model: a}, {model: b}], parameters: {weight: 1}}"
    >>> (recipe,) = parse_recipes(text)
    >>> resolve_tensor(recipe, method_spec("linear"), module="default", slice_index=0,
    ...                input_names=["x", "x"], output_name="x", t=0.0).across_models("weight")
    (1.0, 1.0)
    """
    part = recipe.module(module).slices[slice_index]
    if len(input_names) != len(part.sources):
        raise UsageError(f"{len(input_names)} input names for a slice of {len(part.sources)} sources")

    def value(parameter: MethodParameter, source_index: int | None, tensor_name: str) -> Scalar | None:
        return resolve(
            recipe,
            parameter,
            module=module,
            slice_index=slice_index,
            source_index=source_index,
            tensor_name=tensor_name,
            t=t,
        )

    shared = FrozenMap({p.name: value(p, None, output_name) for p in spec.parameters if not p.per_model})
    base = base_index(recipe, spec, part)
    per_model = tuple(
        None if index == base else FrozenMap({p.name: value(p, index, name) for p in spec.parameters if p.per_model})
        for index, name in enumerate(input_names)
    )
    parameters = TensorParameters(shared, per_model)
    check_constraint(spec, parameters, part, f"tensor {output_name!r}: ")
    return parameters


def check_constraint(spec: MethodSpec, parameters: TensorParameters, part: Slice, where: str = "") -> None:
    """Raise an error if the method cannot work with these parameters together."""
    violation = spec.constraint(parameters) if spec.constraint else None
    if violation is None:
        return
    index = violation.source_index
    location = part.location if index is None else part.sources[index].location
    raise location.error(f"{where}{violation.problem}")
