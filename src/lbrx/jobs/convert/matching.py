"""Which tensors of a model its family names, checked: nothing missing, nothing left over, shapes right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Weight

_LISTED_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of GGUF and the names, one for each expert of a stack, that its values have in Hugging Face models."""

    weight: Weight
    gguf_name: str
    hf_names: tuple[str, ...]
    shape: tuple[int, ...]  # of each Hugging Face tensor
    is_required: bool
    own_gguf_shape: tuple[int, ...] | None = None

    @property
    def gguf_shape(self) -> tuple[int, ...]:
        if self.own_gguf_shape is not None:
            return self.own_gguf_shape
        if self.weight.is_transposed:
            return self.shape[::-1]
        return self.shape if self.weight.items is None else (len(self.hf_names), *self.shape)


def tensor_pairs(family: Family, config: Config, prediction_count: int = 0) -> Iterator[Pair]:
    """Every tensor that a model of the family can have, in the order in which files have them.

    ``prediction_count`` is the number of layers that predict further tokens, after the others.
    """

    layers = config.count(family.layers_key)

    def pair(weight: Weight, layer: int | None) -> Pair:
        assert weight.gguf is not None
        assert weight.shape is not None
        items = (None,) if weight.items is None else range(config.size(weight.items))
        names = tuple(family.namings[0].expand(weight.name, layer, item) for item in items)
        gguf_name = weight.gguf.replace("{layer}", str(layer))
        is_required = (layer is None or layer < layers) and _is_needed(family, weight, config, layer)
        gguf_shape = None if weight.gguf_shape is None else config.shape(weight.gguf_shape, layer=layer)
        return Pair(weight, gguf_name, names, config.shape(weight.shape, layer=layer), is_required, gguf_shape)

    for weight in _in_gguf(family.pre):
        yield pair(weight, None)
    layered = _in_gguf(family.layer)
    for layer in range(layers):
        yield from (pair(weight, layer) for weight in layered if _is_selected(family, weight, config, layer))
    predicting = _in_gguf((*family.layer, *family.prediction)) if prediction_count else []
    for layer in range(layers, layers + prediction_count):
        yield from (pair(weight, layer) for weight in predicting)
    for weight in _in_gguf(family.post):
        yield pair(weight, None)


def _is_selected(family: Family, weight: Weight, config: Config, layer: int) -> bool:
    """Return whether the config needs this one of several weights with the same GGUF name."""
    others = family.all_by_gguf_name[str(weight.gguf).removeprefix("blk.{layer}.")]
    return len(others) == 1 or bool(config.evaluate(weight.needed_when or "True", layer=layer))


def _is_needed(family: Family, weight: Weight, config: Config, layer: int | None) -> bool:
    if weight.optional or weight.tied_to is not None:
        return False
    depends_on_layer = "layer" in (weight.needed_when or "")
    if weight.name.endswith(".bias") and not depends_on_layer and not family.needs_by_default(weight):
        return False  # some models have fewer biases than config.json says
    return weight.needed_when is None or bool(config.evaluate(weight.needed_when, layer=layer))


def _in_gguf(weights: Sequence[Weight]) -> list[Weight]:
    """The weights that GGUF has; in each module matrices come before biases."""
    known = [weight for weight in weights if weight.gguf is not None and weight.in_gguf]
    runs = groupby(known, key=lambda weight: (weight.name.rsplit(".", 2)[0], "norm" in weight.name))
    return [weight for _, run in runs for weight in sorted(run, key=lambda each: each.name.endswith(".bias"))]


@dataclass(frozen=True, eq=False)
class Match:
    """A pair, and the model's tensors for it: as many as it has names in the model's format."""

    pair: Pair
    tensors: tuple[PlannedTensor, ...]


def match_tensors(
    wanted: Iterator[Pair], tensors: Mapping[str, PlannedTensor], *, to_gguf: bool, where: str
) -> list[Match]:
    """Give every pair its tensors; one error names all that are missing, left over or of another shape."""
    matches: list[Match] = []
    problems: list[str] = []
    unused = dict.fromkeys(tensors)
    for pair in wanted:
        names, expected = (pair.hf_names, pair.shape) if to_gguf else ((pair.gguf_name,), pair.gguf_shape)
        held = [tensors[name] for name in names if name in tensors]
        if pair.is_required or held:
            problems += [f"tensor {name!r} is missing" for name in names if name not in tensors]
        for tensor in held:
            unused.pop(tensor.name, None)
            if without_ones(tensor.shape) != without_ones(expected):
                problems.append(f"tensor {tensor.name!r} has shape {tensor.shape}, expected {expected}")
        if len(held) == len(names):
            matches.append(Match(pair, tuple(held)))
    problems += [f"tensor {name!r} has no place in the other format" for name in unused]
    if problems:
        listed = "; ".join(problems[:_LISTED_PROBLEMS])
        more = f"; and {len(problems) - _LISTED_PROBLEMS} more" if len(problems) > _LISTED_PROBLEMS else ""
        raise UsageError(f"{where}: the model cannot be converted: {listed}{more}")
    return matches


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that count: some files have a gate as a vector, others as a matrix of one row."""
    return tuple(size for size in shape if size != 1)
