"""The parameters that a recipe gives a method for one tensor.

A parameter is looked up in the source (if it is per model), the slice, the module and the recipe, in that
order; a scope whose filters do not match the tensor's name is passed over; the default comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import MethodParameter, MethodSpec, Required, Scalar, TensorParameters
from lbrx.jobs.merge.recipe.schema import Module, Parameters, Recipe, Slice
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap


def base_index(recipe: Recipe, spec: MethodSpec, part: Slice) -> int | None:
    """Which source of a slice the method treats as the base; None if it treats none so.

    >>> from lbrx.jobs.merge.methods import method_spec
    >>> from lbrx.jobs.merge.recipe import parse_recipes
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


def filters(recipe: Recipe) -> tuple[str, ...]:
    """The filters of all parameters: tensors whose names match the same ones have the same parameters.

    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = "{merge_method: linear, models: [{model: a}], parameters: {weight: [{filter: mlp, value: 1}]}}"
    >>> filters(parse_recipes(text)[0])
    ('mlp',)
    """
    modules = recipe.modules.values()
    parts = [part for module in modules for part in module.slices]
    sources = [source for part in parts for source in part.sources]
    given = [recipe.parameters, *(owner.parameters for owners in (modules, parts, sources) for owner in owners)]
    branches = (branch for parameters in given for value in parameters.values() for branch in value.branches)
    return tuple({branch.filter: None for branch in branches if branch.filter is not None})


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

    >>> from lbrx.jobs.merge.methods import method_spec
    >>> from lbrx.jobs.merge.recipe import parse_recipes
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

    >>> from lbrx.jobs.merge.methods import method_spec
    >>> from lbrx.jobs.merge.recipe import parse_recipes
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
    for constraint in spec.constraints:
        violation = constraint(parameters)
        if violation is not None:
            index = violation.source_index
            location = part.location if index is None else part.sources[index].location
            raise location.error(f"{where}{violation.problem}")
