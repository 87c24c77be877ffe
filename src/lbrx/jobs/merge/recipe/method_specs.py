"""The parameters of the built-in merge methods, as data."""

from __future__ import annotations

import math

from lbrx.errors import UsageError, nearest
from lbrx.jobs.merge.recipe.parameters import MethodParameter, MethodSpec, TensorParameters, Violation

_RELATIVE_ZERO = 1e-9


def is_custom_method(name: str) -> bool:
    """Whether a method's name points to a function in a Python file, as ``./file.py:function``.

    >>> is_custom_method("./mine.py:blend"), is_custom_method("slerp")
    (True, False)
    """
    path, colon, function = name.rpartition(":")
    return bool(colon) and path.endswith(".py") and function.isidentifier()


def method_spec(name: str) -> MethodSpec | None:
    """The description of a built-in method; None for a custom one, whose file is not read here.

    >>> method_spec("ties").needs_base
    'required'
    """
    if is_custom_method(name):
        return None
    if name in METHOD_SPECS:
        return METHOD_SPECS[name]
    hint = nearest(name, METHOD_SPECS) or f"; expected one of {', '.join(METHOD_SPECS)}, or ./file.py:function"
    raise UsageError(f"unknown merge method {name!r}{hint}")


def _sums_to_zero(weights: list[float]) -> bool:
    return abs(math.fsum(weights)) <= _RELATIVE_ZERO * math.fsum(map(abs, weights))


def _numbers(parameters: TensorParameters, name: str) -> list[float]:
    return [float(value) for value in parameters.across_models(name) if value is not None]


def _weights_divide(parameters: TensorParameters, switch: str) -> Violation | None:
    weights = _numbers(parameters, "weight")
    if parameters.shared[switch] and _sums_to_zero(weights):
        listed = ", ".join(f"{weight:g}" for weight in weights)
        return Violation(
            f"the weights {listed} sum to zero and cannot be normalized; expected another sum, or {switch}: false"
        )
    return None


def _linear_constraint(parameters: TensorParameters) -> Violation | None:
    return _weights_divide(parameters, "normalize")


def _multislerp_constraint(parameters: TensorParameters) -> Violation | None:
    if len(parameters.across_models("weight")) == 1:  # the only model is taken as it is
        return None
    return _weights_divide(parameters, "normalize_weights")


def _della_constraint(parameters: TensorParameters) -> Violation | None:
    """Keep probabilities density - epsilon .. density + epsilon must lie strictly between 0 and 1."""
    for index, values in enumerate(parameters.per_model):
        if values is None:
            continue
        density, epsilon = float(values["density"] or 0), float(values["epsilon"] or 0)
        if 0 < density < 1 and not (density - epsilon > 0 and density + epsilon < 1):
            return Violation(
                f"'epsilon' {epsilon:g} is too large for 'density' {density:g}; "
                f"expected density - epsilon above 0 and density + epsilon below 1",
                index,
            )
    return None


def _fraction(name: str, default: float, per_model: bool = True, effective: bool = True) -> MethodParameter:
    return MethodParameter(name, "float", default, per_model, minimum=0, maximum=1, effective=effective)


_WEIGHT = MethodParameter("weight", "float", per_model=True)
_INT8_MASK = MethodParameter("int8_mask", "bool", False)
_RAM_EPSILON = MethodParameter("epsilon", "float", 1e-5, minimum=0)


def _task_vector(name: str, *extra: MethodParameter, normalize: bool, rescale: bool, sparse: bool = True) -> MethodSpec:
    """A method over differences from the base; ``density`` and ``rescale`` mean something only if it is sparse."""
    return MethodSpec(
        name,
        (
            _WEIGHT,
            _fraction("density", 1.0, effective=sparse),
            *extra,
            MethodParameter("normalize", "bool", normalize),
            MethodParameter("rescale", "bool", rescale, effective=sparse),
            MethodParameter("lambda", "float", 1.0),
            _INT8_MASK,
        ),
        "required",
        constraint=_della_constraint if any(parameter.name == "epsilon" for parameter in extra) else None,
    )


_GAMMA = _fraction("gamma", 0.01)
_DELLA_EPSILON = _fraction("epsilon", 0.15)

_SPECS = (
    MethodSpec("linear", (_WEIGHT, MethodParameter("normalize", "bool", True)), constraint=_linear_constraint),
    MethodSpec("passthrough", (MethodParameter("scale", "float", None, per_model=True),), model_count=(1, 1)),
    MethodSpec("slerp", (MethodParameter("t", "float"),), "required", (1, 1)),
    MethodSpec(
        "nuslerp",
        (
            _WEIGHT,
            MethodParameter("nuslerp_flatten", "bool", True),
            MethodParameter("nuslerp_row_wise", "bool", False),
        ),
        "optional",
        (2, 2),
    ),
    MethodSpec(
        "multislerp",
        (
            _WEIGHT,
            MethodParameter("normalize_weights", "bool", True),
            MethodParameter("eps", "float", 1e-8, minimum=0),
        ),
        "optional",
        constraint=_multislerp_constraint,
    ),
    MethodSpec(
        "karcher",
        (
            MethodParameter("max_iter", "int", 10, gradient=False, minimum=0),
            MethodParameter("tol", "float", 1e-5, minimum=0),
        ),
    ),
    _task_vector("task_arithmetic", normalize=False, rescale=False, sparse=False),
    _task_vector("ties", normalize=True, rescale=False),
    _task_vector("dare_linear", normalize=False, rescale=True),
    _task_vector("dare_ties", normalize=False, rescale=True),
    _task_vector("della", _DELLA_EPSILON, normalize=True, rescale=True),
    _task_vector("della_linear", _DELLA_EPSILON, normalize=False, rescale=True),
    _task_vector("breadcrumbs", _GAMMA, normalize=False, rescale=False),
    _task_vector("breadcrumbs_ties", _GAMMA, normalize=False, rescale=False),
    MethodSpec("model_stock", (MethodParameter("filter_wise", "bool", False),), "required", (2, None)),
    MethodSpec("nearswap", (MethodParameter("t", "float", minimum=0),), "required", (1, 1)),
    MethodSpec("arcee_fusion", (), "required", (1, 1)),
    MethodSpec("sce", (_fraction("select_topk", 1.0, per_model=False), _INT8_MASK), "required"),
    MethodSpec("ram", (_RAM_EPSILON,), "required"),
    MethodSpec(
        "ramplus_tl",
        (
            _RAM_EPSILON,
            MethodParameter("r", "float", 0.1),
            MethodParameter("alpha", "float", 0.2, minimum=0),
        ),
        "required",
    ),
)

METHOD_SPECS: dict[str, MethodSpec] = {spec.name: spec for spec in _SPECS}
"""Every built-in method's description by name."""
