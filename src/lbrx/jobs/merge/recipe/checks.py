"""A recipe against its method: names, kinds and ranges of parameters, inputs, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator

from lbrx.errors import nearest
from lbrx.jobs.merge.methods.method import load_method
from lbrx.jobs.merge.methods.parameters import (
    MethodParameter,
    MethodSpec,
    Required,
    Resolved,
    Scalar,
    TensorParameters,
)
from lbrx.jobs.merge.recipe.parameters import base_index, check_constraint, scopes
from lbrx.jobs.merge.recipe.reading import WITHOUT_EFFECT, unknown_name
from lbrx.jobs.merge.recipe.schema import Module, Parameters, Recipe, Slice
from lbrx.jobs.merge.recipe.values import Value
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap
from lbrx.registry import METHODS


def check_method(recipe: Recipe, spec: MethodSpec) -> tuple[str, ...]:
    """Raise an error if the method cannot run the recipe; return warnings about settings without effect.

    >>> from lbrx.jobs.merge.methods import method_spec
    >>> from lbrx.jobs.merge.recipe import parse_recipes
    >>> text = "{merge_method: linear, models: [{model: a, parameters: {weight: 1}}]}"
    >>> (recipe,) = parse_recipes(text)
    >>> check_method(recipe, method_spec("linear"))
    ()
    """
    warnings = [*_check_scope(recipe.parameters, spec, per_model_only=False)]
    for module in recipe.modules.values():
        warnings += _check_scope(module.parameters, spec, per_model_only=False)
        for part in module.slices:
            warnings += _check_scope(part.parameters, spec, per_model_only=False)
            warnings += _check_slice(recipe, spec, module, part)
    return tuple(warnings)


def _check_slice(recipe: Recipe, spec: MethodSpec, module: Module, part: Slice) -> Iterator[str]:
    base = base_index(recipe, spec, part)
    for index, source in enumerate(part.sources):
        yield from _check_scope(source.parameters, spec, per_model_only=True)
        if index == base:
            for name, value in source.parameters.items():
                yield f"{value.location}: {name!r} has no effect on the base model of {spec.name}"
    _check_inputs(recipe, spec, part, base)
    _check_required(recipe, spec, module, part, base)
    constants = _constant_parameters(recipe, spec, module, part, base)
    if constants is not None:
        check_constraint(spec, constants, part)


def _check_scope(scope: Parameters, spec: MethodSpec, per_model_only: bool) -> Iterator[str]:
    for name, value in scope.items():
        parameter = spec.find(name)
        if parameter is None:
            known = [known.name for known in spec.parameters]
            if nearest(name, known) and not _is_known_elsewhere(name):
                raise unknown_name(value.location, "parameter", name, known, owner=f" of {spec.name}")
            yield f"{value.location}: {spec.name} has no parameter {name!r}, so it has no effect"
            continue
        if per_model_only and not parameter.per_model:
            raise value.location.error(
                f"{name!r} of {spec.name} cannot differ between models; "
                f"expected it in the 'parameters' of the slice, the module or the recipe"
            )
        yield from _check_value(parameter, value, spec)


def _is_known_elsewhere(name: str) -> bool:
    """Whether a name is a parameter of another method, or one that published recipes have."""
    return name in WITHOUT_EFFECT or any(load_method(method).spec.find(name) for method in METHODS)


def _check_value(parameter: MethodParameter, value: Value, spec: MethodSpec) -> Iterator[str]:
    for branch in value.branches:
        if len(branch.points) > 1 and not parameter.gradient:
            raise branch.location.error(
                f"{parameter.name!r} of {spec.name} takes no gradient; expected one value, "
                f"found a list of {len(branch.points)}"
            )
        for point in branch.points:
            parameter.read(point, branch.location)
    if not parameter.effective:
        yield f"{value.location}: {parameter.name!r} has no effect on {spec.name}"
    for earlier, later in zip(value.branches, value.branches[1:], strict=False):
        if earlier.matches_all:
            unused = f"this value of {parameter.name!r} is never used"
            yield f"{later.location}: {unused}: one before it matches every tensor"
            return


def _check_inputs(recipe: Recipe, spec: MethodSpec, part: Slice, base: int | None) -> None:
    base_model = recipe.base_of(part)
    if spec.needs_base == "required" and base_model is None:
        raise recipe.method_location.error(f"{spec.name} needs a 'base_model', found none")
    if spec.needs_base == "forbidden" and base_model is not None:
        raise recipe.method_location.error(f"{spec.name} takes no 'base_model', found {str(base_model)!r}")
    if spec.needs_base != "ignored" and base_model is not None and base is None:
        raise part.location.error(
            f"the base model {str(base_model)!r} is not a source of this slice; {spec.name} needs it as one"
        )
    count = len(part.sources) - (base is not None)
    least, most = spec.model_count
    if least <= count and (most is None or count <= most):
        return
    besides = "" if spec.needs_base == "ignored" else " besides the base"
    raise part.location.error(
        f"{spec.name} takes {_count_text(least, most)}{besides}, found {count}{_base_note(recipe, spec, part)}"
    )


def _count_text(least: int, most: int | None) -> str:
    if most is None:
        return f"at least {least} model{'s' * (least != 1)}"
    if least == most:
        return f"exactly {least} model{'s' * (least != 1)}"
    return f"{least} to {most} models"


def _base_note(recipe: Recipe, spec: MethodSpec, part: Slice) -> str:
    """Why there is one model more than the recipe lists."""
    if spec.needs_base == "ignored" and part.layers is None and recipe.base_model is not None:
        return f" (the base model {str(recipe.base_model)!r} is one of them)"
    return ""


def _check_required(recipe: Recipe, spec: MethodSpec, module: Module, part: Slice, base: int | None) -> None:
    for parameter in spec.parameters:
        if not isinstance(parameter.default, Required):
            continue
        if not parameter.per_model:
            if not any(parameter.name in scope for scope in scopes(recipe, module, part, None)):
                raise recipe.method_location.error(
                    f"{spec.name} needs the parameter {parameter.name!r}, found none; "
                    f"expected it in the 'parameters' of the recipe or of the slice"
                )
            continue
        for index, source in enumerate(part.sources):
            given = any(parameter.name in scope for scope in scopes(recipe, module, part, index))
            if index != base and not given:
                raise source.location.error(
                    f"model {str(source.model)!r} has no {parameter.name!r}, which {spec.name} needs; "
                    f"expected it in the 'parameters' of the model or of the recipe"
                )


def _constant_parameters(
    recipe: Recipe, spec: MethodSpec, module: Module, part: Slice, base: int | None
) -> TensorParameters | None:
    """The parameters that hold for every tensor of a slice; None if one depends on the tensor or the layer."""
    shared = _constants(recipe, spec, module, part, None)
    if shared is None:
        return None
    per_model: list[Resolved | None] = []
    for index in range(len(part.sources)):
        values = None if index == base else _constants(recipe, spec, module, part, index)
        if values is None and index != base:
            return None
        per_model.append(values)
    return TensorParameters(shared, tuple(per_model))


def _constants(
    recipe: Recipe, spec: MethodSpec, module: Module, part: Slice, source_index: int | None
) -> Resolved | None:
    values: dict[str, Scalar | None] = {}
    for parameter in spec.parameters:
        if parameter.per_model != (source_index is not None):
            continue
        given = (s[parameter.name] for s in scopes(recipe, module, part, source_index) if parameter.name in s)
        value = next(given, None)
        if value is not None:
            if value.constant is None:
                return None
            values[parameter.name] = parameter.read(value.constant, value.location)
        elif not isinstance(parameter.default, Required):
            values[parameter.name] = parameter.default
    return FrozenMap(values)
