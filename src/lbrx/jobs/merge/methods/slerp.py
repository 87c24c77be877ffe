"""Spherical interpolation from the base to one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lbrx.jobs.merge.methods.parameters import Limits
from lbrx.jobs.merge.methods.spherical import pairwise_dots, slerp_coefficients
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor

_LEAST_NORM = 1e-8
_STRAIGHT_COSINE = 0.9995


def slerp(base: Tensor, models: Annotated[Sequence[Tensor], Limits(1, 1)], *, t: float) -> Tensor:
    """The point at ``t`` of the arc from the base (0) to the model (1); a straight line where they are about parallel.

    >>> from lbrx import tensor
    >>> slerp(tensor([1.0, 0.0]), [tensor([0.0, 1.0])], t=0.5).numpy().round(4)
    array([0.7071, 0.7071])
    """
    (model,) = models
    (base_square, dot), (_, model_square) = pairwise_dots([base, model])
    cosine = dot / (_length(base_square) * _length(model_square))
    from_base, from_model = slerp_coefficients(cosine, t, abs(cosine) > _STRAIGHT_COSINE)
    return base * from_base + model * from_model


def _length(square: Tensor) -> Tensor:
    """What a tensor is divided by to be of length 1; one of about no length is left as it is."""
    norm = square.sqrt()
    return where(norm <= _LEAST_NORM, 1.0, norm)
