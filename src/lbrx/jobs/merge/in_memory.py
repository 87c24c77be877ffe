"""``lbrx.merge_tensors``: a merge method applied to tensors instead of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.jobs.merge.methods.method import MergeContext, Method, load_method
from lbrx.jobs.merge.methods.parameters import MethodParameter, Required, Scalar, TensorParameters
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap
from lbrx.tensors.dtype import DType, promote
from lbrx.tensors.expr import F32
from lbrx.tensors.tensor import Tensor, tensor

Input = Tensor | npt.NDArray[Any]


def merge_tensors(
    tensors: Sequence[Input],
    method: str = "linear",
    *,
    base: Input | None = None,
    parameters: Mapping[str, Scalar | Sequence[Scalar]] | None = None,
    dtype: DType | str | None = None,
    name: str = "tensor",
    seed: int = 0,
) -> Tensor:
    """Merge tensors of equal shape with one of the merge methods. Nothing is computed until values are needed.

    ``parameters`` are those of the method in a recipe; one that differs between models is a list with a value for each
    of the ``tensors``. ``name`` and ``seed`` choose the random numbers of methods such as dare_ties: with the name that
    a tensor has in a model, they are those of `lbrx.merge`. The result has the floating type of the inputs (f32 for
    integers), or ``dtype``.

    >>> import lbrx
    >>> a, b = lbrx.tensor([1.0, 2.0]), lbrx.tensor([3.0, 6.0])
    >>> lbrx.merge_tensors([a, b], "linear", parameters={"weight": [0.75, 0.25]}).tolist()
    [1.5, 3.0]
    >>> lbrx.merge_tensors([b], "slerp", base=a, parameters={"t": 1}).tolist()
    [3.0, 6.0]
    """
    if isinstance(tensors, Tensor | np.ndarray):
        raise UsageError("merge_tensors takes a list of tensors, found one; expected [a, b]")
    models = [_as_tensor(each) for each in tensors]
    found = load_method(method)
    if found.spec.text_parameter is not None:
        raise UsageError(f"{method} runs whole models on texts; expected lbrx.merge")
    _check_base(found, base)
    inputs = models if base is None else [_as_tensor(base), *models]
    if not models:
        raise UsageError(f"{method}: no tensors were given; expected at least one")
    least, most = found.spec.model_count
    if len(models) < least or (most is not None and len(models) > most):
        expected = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise UsageError(f"{method}: {len(models)} tensors; expected {expected}")
    base_index = None if base is None else 0
    values = _parameters(found, parameters or {}, len(models), base_index)
    for constraint in found.spec.constraints:
        violation = constraint(values)
        if violation is not None:
            raise UsageError(f"{method}: {violation.problem}")
    result = found.merge(inputs, base_index, values, MergeContext(name, seed))
    return result.to(_common_dtype(inputs) if dtype is None else dtype)


@dataclass(frozen=True, slots=True)
class _Argument:
    """Names the method in errors about its parameters."""

    method: str

    def error(self, problem: str, /) -> Exception:
        return UsageError(f"{self.method}: {problem}")


def _as_tensor(given: Input) -> Tensor:
    return given if isinstance(given, Tensor) else tensor(np.asarray(given))


def _common_dtype(inputs: Sequence[Tensor]) -> DType:
    result = inputs[0].dtype
    for each in inputs[1:]:
        result = result if each.dtype is result else promote(result, each.dtype)
    return result if result.is_float else F32


def _check_base(method: Method, base: Input | None) -> None:
    policy = method.spec.needs_base
    if policy == "required" and base is None:
        raise UsageError(f"{method.name} needs a base; expected base=TENSOR")
    if policy in ("forbidden", "ignored") and base is not None:
        raise UsageError(f"{method.name} takes no base; expected it among the tensors")


def _parameters(
    method: Method, given: Mapping[str, Scalar | Sequence[Scalar]], count: int, base_index: int | None
) -> TensorParameters:
    known = [parameter.name for parameter in method.spec.parameters]
    for name in given:
        if name not in known:
            hint = nearest(name, known) or f"; expected {', '.join(known) or 'none'}"
            raise UsageError(f"{method.name}: unknown parameter {name!r}{hint}")
    shared: dict[str, Scalar | None] = {}
    per_model: list[dict[str, Scalar | None]] = [{} for _ in range(count)]
    for parameter in method.spec.parameters:
        value = given.get(parameter.name)
        if not parameter.per_model:
            shared[parameter.name] = _value(method, parameter, value)
            continue
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value] * count
        if len(values) != count:
            raise UsageError(
                f"{method.name}: {parameter.name!r} has {len(values)} values; expected one, or one for each of {count}"
            )
        for own, each in zip(per_model, values, strict=True):
            own[parameter.name] = _value(method, parameter, each)
    resolved = [FrozenMap(own) for own in per_model]
    return TensorParameters(FrozenMap(shared), tuple(resolved) if base_index is None else (None, *resolved))


def _value(method: Method, parameter: MethodParameter, given: object) -> Scalar | None:
    if given is None:
        if isinstance(parameter.default, Required):
            raise UsageError(f"{method.name}: the parameter {parameter.name!r} is missing")
        return parameter.default
    if not isinstance(given, bool | int | float | str):
        raise UsageError(f"{method.name}: {parameter.name!r} is a {type(given).__name__}; expected a number or text")
    return parameter.read(given, _Argument(method.name))
