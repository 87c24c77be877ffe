"""How two models differ, tensor by tensor: each pair of tensors is read once, in one fused pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from lbrx.creation import evaluate
from lbrx.errors import UsageError
from lbrx.records import dataclass
from lbrx.shape import Shape
from lbrx.tensor import Tensor

TASK_METRIC = "task_cosine"


@dataclass(frozen=True, slots=True)
class Sums:
    """What is summed up over the elements of a pair of tensors a and b; sums of several tensors can be added.

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
        """The share of elements with the same sign in both; zero agrees with zero alone."""
        return self.equal_signs / self.elements if self.elements else math.nan

    @property
    def task_cosine(self) -> float:
        """The cosine of the angle between ``a - base`` and ``b - base``; NaN without a base."""
        return _cosine(self.task_product, self.task_squares_a, self.task_squares_b) if self.has_tasks else math.nan

    def metrics(self) -> dict[str, float]:
        """All numbers by their names; the cosine of the task vectors only if there is a base."""
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


class Place(NamedTuple):
    """Where a tensor is in a model: its stack of layers and the number in it, or none, and its kind of module."""

    stack: str
    layer: int | None
    module: str


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One tensor that both models have."""

    name: str
    shape: Shape
    place: Place
    sums: Sums


@dataclass(frozen=True, slots=True)
class ShapeMismatch:
    """A tensor that has different shapes in the two models."""

    name: str
    shape_a: Shape
    shape_b: Shape


@dataclass(frozen=True, slots=True)
class ModelDiff:
    """The tensors that were compared, and all that could not be."""

    tensors: tuple[TensorDiff, ...]
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    shape_mismatches: tuple[ShapeMismatch, ...] = ()
    without_base: tuple[str, ...] = ()  # compared, but without the base's tensor

    @property
    def total(self) -> Sums:
        return sum((tensor.sums for tensor in self.tensors), Sums())

    def layers(self) -> dict[tuple[str, int], Sums]:
        """The sums of each layer, by its stack and number, in order."""
        found: dict[tuple[str, int], Sums] = {}
        for tensor in self.tensors:
            stack, layer, _ = tensor.place
            if layer is not None:
                found[stack, layer] = found.get((stack, layer), Sums()) + tensor.sums
        return dict(sorted(found.items()))

    def outside_layers(self) -> list[TensorDiff]:
        """The tensors that belong to no layer."""
        return [tensor for tensor in self.tensors if tensor.place.layer is None]

    def modules(self) -> dict[tuple[str, int], dict[str, Sums]]:
        """The sums of each kind of module in each layer; experts of one layer are one kind."""
        found: dict[tuple[str, int], dict[str, Sums]] = {key: {} for key in self.layers()}
        for tensor in self.tensors:
            stack, layer, module = tensor.place
            if layer is not None:
                row = found[stack, layer]
                row[module] = row.get(module, Sums()) + tensor.sums
        return found


ProgressCallback = Callable[[int, int, str], None]
Measure = Callable[[str, Tensor, Tensor, Tensor | None], Sums]


def diff_models(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    base: Mapping[str, Tensor] | None = None,
    *,
    pattern: str | None = None,
    progress: ProgressCallback | None = None,
    measure: Measure | None = None,
) -> ModelDiff:
    """Compare all tensors of two models that have the same names, or those whose names match a pattern.

    A pattern with ``*``, ``?`` or ``[`` is matched with the whole name, other text anywhere in it. ``progress`` is
    called with tensors done, tensors in all, and a name; ``measure`` can stand for ``compare`` where more is wanted.

    >>> import lbrx
    >>> one, two = ({"w": lbrx.tensor(values, "f32")} for values in ([3.0, 4.0], [3.0, -4.0]))
    >>> sums = diff_models(one, two).tensors[0].sums
    >>> sums.relative_change, sums.cosine, sums.sign_agreement, sums.max_difference
    (1.6, -0.28, 0.5, 8.0)
    """
    chosen_a, chosen_b = ([name for name in model if _matches(name, pattern)] for model in (a, b))
    common = [name for name in chosen_a if name in b]
    if not common:
        raise UsageError(_nothing_in_common(chosen_a, chosen_b, pattern))
    mismatches = tuple(
        ShapeMismatch(name, a[name].shape, b[name].shape) for name in common if a[name].shape != b[name].shape
    )
    odd = {mismatch.name for mismatch in mismatches}
    compared = [name for name in common if name not in odd]
    without_base = [
        name for name in compared if base is not None and (name not in base or base[name].shape != a[name].shape)
    ]
    lacking = set(without_base)
    places = places_of([*a, *(name for name in b if name not in a)])
    found = []
    for number, name in enumerate(compared):
        origin = None if base is None or name in lacking else base[name]
        pair = a[name], b[name]
        sums = compare(*pair, origin) if measure is None else measure(name, *pair, origin)
        found.append(TensorDiff(name, pair[0].shape, places[name], sums))
        if progress is not None:
            progress(number + 1, len(compared), name)
    return ModelDiff(
        tuple(found),
        tuple(name for name in chosen_a if name not in b),
        tuple(name for name in chosen_b if name not in a),
        mismatches,
        tuple(without_base),
    )


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    return fnmatchcase(name, pattern) if any(mark in pattern for mark in "*?[") else pattern in name


def _nothing_in_common(a: Sequence[str], b: Sequence[str], pattern: str | None) -> str:
    which = "" if pattern is None else f" that matches {pattern!r}"
    examples = f": {a[0]!r} is in the first, {b[0]!r} in the second" if a and b else ""
    return f"the models have no tensor{which} in common{examples}"


def compare(a: Tensor, b: Tensor, base: Tensor | None = None) -> Sums:
    """The sums over two tensors of one shape, from one pass over both and the base.

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
    """The tensor as floats: blocks are dequantized as they are read."""
    values = tensor.dequantize()
    return values if values.dtype.is_float else values.to("f64")


def places_of(names: Iterable[str]) -> dict[str, Place]:
    """Where every tensor of a model is, told by all the names together.

    >>> places = places_of(["embed.weight", "model.layers.0.mlp.experts.3.up.weight", "model.layers.0.norm.bias"])
    >>> places["model.layers.0.mlp.experts.3.up.weight"]
    Place(stack='model.layers', layer=0, module='mlp.experts.*.up')
    >>> places["embed.weight"], places["model.layers.0.norm.bias"].module
    (Place(stack='', layer=None, module='embed'), 'norm.bias')
    """
    from lbrx.architectures.stacks import find_stacks, layer_number

    listed = list(names)
    prefixes = [stack.prefix for stack in find_stacks(listed)]
    places = {}
    for name in listed:
        numbers = ((prefix, layer_number(name, prefix)) for prefix in prefixes)
        prefix, layer = next((found for found in numbers if found[1] is not None), ("", None))
        rest = name if layer is None else name[len(f"{prefix}{layer}.") :]
        places[name] = Place(prefix.rstrip("."), layer, _module(rest))
    return places


def _module(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    return ".".join("*" if part.isdigit() else part for part in parts)


def short_labels(modules: Sequence[str]) -> list[str]:
    """The ends of dotted names, as short as they can be without two becoming equal.

    >>> short_labels(["self_attn.q_proj", "mlp.up_proj", "shared.up_proj"])
    ['q_proj', 'mlp.up_proj', 'shared.up_proj']
    """
    labels = []
    for module in modules:
        parts = module.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [other for other in modules if other != module]
        is_free = (end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others))
        labels.append(next(is_free, module))
    return labels
