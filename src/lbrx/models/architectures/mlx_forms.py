"""Values that mlx_lm changes when it converts a model.

It changes those of other models when it loads them, but for families with stacked experts: those are written as it
expects them. Convolutions have their last two axes swapped, and norms are 1 + weight, rounded to the type of the model.
Tensors that predict further tokens are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbrx.errors import FormatError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.config import Values
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Weight
from lbrx.models.architectures.table import known_family
from lbrx.tensors.tensor import Tensor

_PREDICTION = ("mtp.", "model.mtp.")


def to_mlx_forms(tensors: Sequence[PlannedTensor], config: Values | None) -> tuple[list[PlannedTensor], list[str]]:
    """Return tensors with the values that MLX has, and a warning if some are left out."""
    family = None if config is None else known_family(config)
    if family is None or not family.has_mlx_forms:
        return list(tensors), []
    kept = [tensor for tensor in tensors if not tensor.name.startswith(_PREDICTION)]
    left_out = len(tensors) - len(kept)
    note = f"{left_out} tensors are left out: mlx_lm does not predict further tokens with {family.name}"
    return _changed(kept, family, 1.0), [note] * (left_out > 0)


def from_mlx_forms(
    tensors: Sequence[PlannedTensor], config: Values | None, stored: Sequence[PlannedTensor]
) -> list[PlannedTensor]:
    """Return tensors with the values of Hugging Face models, but for the rounding of norms.

    ``stored`` are all tensors of the model: the axes of its convolutions tell whether mlx_lm has converted it.
    """
    family = None if config is None else known_family(config)
    ends = {} if family is None else _ends(family)
    convolutions = [each for each in stored if len(each.shape) == 3 and _is_conv(each.name, ends)]
    if family is None or not any(each.shape[2] == 1 < each.shape[1] for each in convolutions):
        return list(tensors)
    if any(weight.gguf_scales for weight in family.weights):
        raise FormatError(
            f"{convolutions[0].name!r} has been converted by mlx_lm, which multiplies weights of {family.name} by "
            "numbers of the config; expected the model as Hugging Face has it"
        )
    return _changed(tensors, family, -1.0)


def _ends(family: Family) -> dict[str, Weight]:
    """Return the weights that change: in layers by the ends of their names, outside of them by whole names."""
    changing = [weight for weight in family.weights if weight.is_conv or weight.adds_one]
    inside = {weight.name.rpartition("}")[2]: weight for weight in changing if "{layer}" in weight.name}
    outside = (weight for weight in changing if "{layer}" not in weight.name)
    return inside | {naming.expand(weight.name): weight for weight in outside for naming in family.namings}


def _is_conv(name: str, ends: dict[str, Weight]) -> bool:
    weight = _weight_of(name, ends)
    return weight is not None and weight.is_conv


def _changed(tensors: Sequence[PlannedTensor], family: Family, added: float) -> list[PlannedTensor]:
    ends = _ends(family)
    return [_form(tensor, _weight_of(tensor.name, ends), added) for tensor in tensors]


def _weight_of(name: str, ends: dict[str, Weight]) -> Weight | None:
    known = (weight for end, weight in ends.items() if (name.endswith(end) if end[0] == "." else name == end))
    return next(known, None)


def _form(tensor: PlannedTensor, weight: Weight | None, added: float) -> PlannedTensor:
    if weight is None:
        return tensor
    if weight.is_conv:
        first, *rest = tensor.shape
        return tensor.mapped(_swapped, shape=(first, *reversed(rest)))
    return tensor.mapped(_sum(added, tensor.type_name))


def _swapped(values: Tensor) -> Tensor:
    return values.transpose(0, 2, 1)


def _sum(added: float, type_name: str) -> Callable[[Tensor], Tensor]:
    return lambda values: (values.to("f64") + added).to(type_name)
