"""Compare two tensors: sums over both in one fused pass."""

from __future__ import annotations

import math
from dataclasses import replace

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.creation import evaluate
from lbrx.tensors.tensor import Tensor

TASK_METRIC = "task_cosine"


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the elements of a pair of tensors a and b. Add the sums of several tensors with ``+``.

    The task sums are over the differences from a base: ``a - base`` and ``b - base``.

    >>> total = Sums(1, 9.0, 16.0, 12.0, 1.0, 1, 1.0) + Sums(1, 16.0, 0.0, 0.0, 16.0, 0, 4.0)
    >>> total.cosine, total.sign_agreement, total.max_difference
    (0.6, 0.5, 4.0)
    """

    elements: int = 0
    squares_a: float = 0.0
    squares_b: float = 0.0
    product: float = 0.0
    squares_difference: float = 0.0
    equal_signs: int = 0
    max_difference: float = 0.0
    task_squares_a: float = 0.0
    task_squares_b: float = 0.0
    task_product: float = 0.0
    has_tasks: bool = False

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.elements + other.elements,
            self.squares_a + other.squares_a,
            self.squares_b + other.squares_b,
            self.product + other.product,
            self.squares_difference + other.squares_difference,
            self.equal_signs + other.equal_signs,
            _larger(self.max_difference, other.max_difference),
            self.task_squares_a + other.task_squares_a,
            self.task_squares_b + other.task_squares_b,
            self.task_product + other.task_product,
            self.has_tasks or other.has_tasks,
        )

    @property
    def relative_change(self) -> float:
        """``||a - b|| / ||a||``."""
        if self.squares_a == 0:
            return 0.0 if self.squares_difference == 0 else math.inf
        return math.sqrt(self.squares_difference / self.squares_a)

    @property
    def cosine(self) -> float:
        """The cosine of the angle between a and b; NaN if one of them is zero."""
        return _cosine(self.product, self.squares_a, self.squares_b)

    @property
    def sign_agreement(self) -> float:
        """The fraction of elements with the same sign in both. Zero agrees only with zero."""
        return self.equal_signs / self.elements if self.elements else math.nan

    @property
    def task_cosine(self) -> float:
        """The cosine of the angle between ``a - base`` and ``b - base``; NaN without a base."""
        return _cosine(self.task_product, self.task_squares_a, self.task_squares_b) if self.has_tasks else math.nan

    def metrics(self) -> dict[str, float]:
        """Return all metrics by name. The cosine of the task vectors is included only if there is a base."""
        named = {name: float(getattr(self, name)) for name in METRICS}
        return named if self.has_tasks else {name: value for name, value in named.items() if name != TASK_METRIC}


METRICS = ("relative_change", "cosine", "sign_agreement", "max_difference", TASK_METRIC)


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _cosine(product: float, squares_a: float, squares_b: float) -> float:
    if squares_a == 0 or squares_b == 0:
        return math.nan
    value = product / (math.sqrt(squares_a) * math.sqrt(squares_b))
    return value if math.isnan(value) else min(max(value, -1.0), 1.0)


def compare(a: Tensor, b: Tensor, base: Tensor | None = None) -> Sums:
    """Sum over two tensors of the same shape in one pass over both and the base.

    >>> import lbrx
    >>> compare(lbrx.full((4,), 1, "f32"), lbrx.full((4,), 2, "bf16")).relative_change
    1.0
    """
    if not a.size:
        return Sums()
    first, second = _floats(a), _floats(b)
    difference = first - second
    wanted = [
        first.dot(first),
        second.dot(second),
        first.dot(second),
        difference.dot(difference),
        (first.sign() == second.sign()).sum(),
        abs(difference).max(),
    ]
    if base is not None:
        origin = _floats(base)
        task_a, task_b = first - origin, second - origin
        wanted += [task_a.dot(task_a), task_b.dot(task_b), task_a.dot(task_b)]
    numbers = [float(value) for value in evaluate(*wanted)]
    squares_a, squares_b, product, squares_difference, equal_signs, max_difference = numbers[:6]
    sums = Sums(a.size, squares_a, squares_b, product, squares_difference, int(equal_signs), max_difference)
    if base is None:
        return sums
    task_squares_a, task_squares_b, task_product = numbers[6:]
    return replace(
        sums,
        task_squares_a=task_squares_a,
        task_squares_b=task_squares_b,
        task_product=task_product,
        has_tasks=True,
    )


def _floats(tensor: Tensor) -> Tensor:
    """Return the tensor as floats. Quantized blocks are decoded as they are read."""
    values = tensor.dequantize()
    return values if values.dtype.is_float else values.to("f64")
