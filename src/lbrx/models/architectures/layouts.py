"""Layouts of the weights of a family: one tensor for each weight, or joined tensors, such as all experts of a layer.

A family names its weights one by one; ``Family.joined`` lists the tensors that can store several of them. Models of
different layouts have the same weights, so that they can be merged. Converting and running see separate weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import Joined, Weight
from lbrx.models.architectures.value_changes import RowNumbers, picked_rows, stack_part
from lbrx.tensors.creation import concatenate
from lbrx.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Part:
    """A weight in a joined tensor: its names, one for each item of a stack, and its shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]  # of one item
    is_stack: bool

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of all items."""
        return (len(self.names), *self.shape) if self.is_stack else self.shape


@dataclass(frozen=True, slots=True)
class _Whole:
    """A joined tensor of a layer of a model."""

    name: str
    record: Joined
    shape: tuple[int, ...]
    view: tuple[int, ...]
    parts: tuple[_Part, ...]
    rows: RowNumbers | None = None  # the order of rows in the parts

    def cut(self, tensor: Tensor, number: int, item: int) -> Tensor:
        """Return an item of a part, or the whole part if it is not a stack."""
        record, axis = self.record, self.record.axis
        if self.rows is not None:
            sizes = [part.shape[0] for part in self.parts]
            return picked_rows(tensor, self.rows[sum(sizes[:number]) : sum(sizes[: number + 1])])
        tensor = tensor if self.view == self.shape else tensor.reshape(self.view)
        if self.parts[number].is_stack:
            tensor, axis = stack_part(tensor, item), axis - 1
        tensor = _swapped(tensor) if record.is_swapped else tensor
        if len(self.parts) > 1:
            tensor = tensor[(*(slice(None) for _ in range(axis)), self._run(number))]
        tensor = _swapped(tensor) if record.parts[number] in record.swapped else tensor
        wanted = self.parts[number].shape
        return tensor if tensor.shape == wanted else tensor.reshape(wanted)

    def cut_blocks(self, tensor: Tensor, number: int, item: int) -> Tensor:
        """Return an item of a part of GGML blocks, whose rows are those of the items."""
        rows = stack_part(tensor, item)
        return picked_rows(rows, np.arange(rows.shape[0], dtype=np.int64)[self._run(number)])

    def _run(self, number: int) -> slice:
        """Return the elements of a part along the axis."""
        if self.record.is_interleaved:
            return slice(number, None, len(self.parts))
        sizes = [self._size(part) for part in range(len(self.parts))]
        return slice(sum(sizes[:number]), sum(sizes[: number + 1]))

    def _size(self, number: int) -> int:
        others = math.prod(self.view) // self.view[self.record.axis]
        if self.record.is_swapped:
            swapped = (*self.view[:-2], self.view[-1], self.view[-2])
            others = math.prod(swapped) // swapped[self.record.axis]
        return math.prod(self.parts[number].whole_shape) // others

    def assemble(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the joined tensor of the items of each part."""
        record = self.record
        if len(parts) == 1 and not self.parts[0].is_stack:
            return parts[0][0]
        items = [
            [_swapped(item) if name in record.swapped else item for item in part]
            for name, part in zip(record.parts, parts, strict=True)
        ]
        if self.parts[0].is_stack:  # item by item, so that only one is in memory
            return concatenate([self._joined(each, record.axis - 1) for each in zip(*items, strict=True)]).reshape(
                self.shape
            )
        if record.axis == 0:
            joined = concatenate([part[0] for part in items]).reshape(self.shape)
            return joined if self.rows is None else picked_rows(joined, np.argsort(self.rows))
        if record.view is not None:
            sizes = [(self.view[0], self._size(number), *self.view[2:]) for number in range(len(items))]
            items = [[part[0].reshape(size)] for part, size in zip(items, sizes, strict=True)]
        heads = range(items[0][0].shape[0])
        pieces = [concatenate([part[0][head] for part in items], record.axis - 1) for head in heads]
        return concatenate(pieces).reshape(self.shape)

    def _joined(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join one item of each part."""
        joined = parts[0] if len(parts) == 1 else concatenate(parts, axis)
        if self.record.is_interleaved and len(parts) > 1:
            rows = np.arange(joined.shape[0], dtype=np.int64).reshape(len(parts), -1).T.reshape(-1)
            joined = joined.rows(rows)
        return _swapped(joined) if self.record.is_swapped else joined


def _swapped(tensor: Tensor) -> Tensor:
    return tensor.transpose(*range(tensor.ndim - 2), tensor.ndim - 1, tensor.ndim - 2)


def layout_of(names: Iterable[str], family: Family, config: Config) -> frozenset[str]:
    """Return the records of the joined tensors that a model has, by their names.

    >>> from lbrx.models.architectures import find_family
    >>> qwen = find_family({"model_type": "qwen3_moe"})
    >>> layout_of(["model.layers.0.mlp.experts.down_proj"], qwen, qwen.config({"num_hidden_layers": 1}))
    frozenset({'{base}layers.{layer}.mlp.experts.down_proj'})
    """
    if not family.joined:
        return frozenset()
    present = frozenset(names)
    naming, layers = family.naming(present), range(_layer_count(family, config, present))
    templates = (record.name for record in family.joined)
    return frozenset(name for name in templates if any(naming.expand(name, layer) in present for layer in layers))


def separated(
    tensors: Sequence[PlannedTensor], family: Family, config: Config, keep: Collection[Joined] = ()
) -> tuple[PlannedTensor, ...]:
    """Return the tensors of a model with one for each weight; joined tensors are cut up while they are read.

    Those that ``keep`` lists are not.
    """
    if not family.joined:
        return tuple(tensors)
    names = frozenset(each.name for each in tensors)
    candidates = (whole for whole in _wholes(family, config, names) if whole.record not in keep)
    wholes = {whole.name: whole for whole in candidates if whole.name in names}
    result: list[PlannedTensor] = []
    for tensor in tensors:
        whole = wholes.get(tensor.name)
        result += [tensor] if whole is None else _cut(tensor, whole, names, config)
    return tuple(result)


def _cut(tensor: PlannedTensor, whole: _Whole, names: frozenset[str], config: Config) -> Iterator[PlannedTensor]:
    if tensor.shape != whole.shape:
        raise UsageError(
            f"{config.where}: tensor {tensor.name!r} has shape {tensor.shape}, expected {whole.shape} for the weights "
            "that it contains"
        )
    for number, part in enumerate(whole.parts):
        source, cut = (tensor, whole.cut) if tensor.blocks is None else (tensor.blocks, whole.cut_blocks)
        for item, name in enumerate(part.names):
            if name in names:
                raise UsageError(f"{config.where}: tensors {name!r} and {tensor.name!r} contain the same weights")
            yield PlannedTensor(name, source.type_name, part.shape, partial(_made, source.make, cut, number, item))


def _made(make: Callable[[], Tensor], cut: Callable[[Tensor, int, int], Tensor], number: int, item: int) -> Tensor:
    return cut(make(), number, item)


def joined(tensors: Sequence[PlannedTensor], family: Family, config: Config) -> tuple[PlannedTensor, ...]:
    """Return the tensors of a model in the layout that checkpoints of the family have; the inverse of ``separated``."""
    usual = {weight.joined_in for weight in family.weights} - {None}
    if not usual:
        return tuple(tensors)
    by_name = {each.name: each for each in tensors}
    found: dict[str, PlannedTensor] = {}  # joined tensors by the name of their first item
    used: set[str] = set()
    for whole in _wholes(family, config, frozenset(by_name)):
        names = [name for part in whole.parts for name in part.names]
        if whole.record.name in usual and any(name in by_name for name in names):
            found[names[0]] = _assembled(whole, by_name, config)
            used.update(names)
    return tuple(found.get(each.name, each) for each in tensors if each.name not in used or each.name in found)


def _assembled(whole: _Whole, by_name: Mapping[str, PlannedTensor], config: Config) -> PlannedTensor:
    parts = [[by_name.get(name) for name in part.names] for part in whole.parts]
    present = [each for part in parts for each in part if each is not None]
    if len(present) < sum(map(len, parts)):
        absent = next(name for part in whole.parts for name in part.names if name not in by_name)
        raise UsageError(f"{config.where}: tensor {absent!r} is missing; {whole.name!r} contains its values")
    types = {each.type_name for each in present}
    type_name = types.pop() if len(types) == 1 else "f32"

    def make() -> Tensor:
        return whole.assemble([[each.make().to(type_name) for each in part if each is not None] for part in parts])

    return PlannedTensor(whole.name, type_name, whole.shape, make)


def _wholes(family: Family, config: Config, names: frozenset[str]) -> Iterator[_Whole]:
    """Yield every joined tensor that a model can have."""
    if not family.joined:
        return
    weights = {weight.name: weight for weight in family.weights}
    naming = family.naming(names)
    count = _layer_count(family, config, names)
    for record in family.joined:
        parts = [_part_shape(weights[name], config) for name in record.parts]
        shape = config.shape(weights[record.name].shape or ())
        view = shape if record.view is None else config.shape(record.view)
        rows = None if record.groups is None else _rows(config.count(record.groups), config.shape(record.runs))
        for layer in range(count):
            yield _Whole(
                naming.expand(record.name, layer),
                record,
                shape,
                view,
                tuple(
                    _Part(tuple(naming.expand(name, layer, item) for item in items), part_shape, items != (None,))
                    for name, (items, part_shape) in zip(record.parts, parts, strict=True)
                ),
                rows,
            )


def _rows(groups: int, runs: Sequence[int]) -> RowNumbers:
    """Return the rows of the first runs of all groups, then those of the second ones, and so on."""
    starts = np.arange(groups, dtype=np.int64)[:, None] * sum(runs)
    ends = np.cumsum(runs)
    return np.concatenate(
        [(starts + np.arange(end - size, end)).reshape(-1) for size, end in zip(runs, ends, strict=True)]
    )


def _layer_count(family: Family, config: Config, names: frozenset[str]) -> int:
    return family.layer_count(config.given, names) + family.prediction_count(config.given, names)


def _part_shape(weight: Weight, config: Config) -> tuple[Sequence[int | None], tuple[int, ...]]:
    items: Sequence[int | None] = (None,) if weight.items is None else range(config.size(weight.items))
    return items, config.shape(weight.shape or ())
