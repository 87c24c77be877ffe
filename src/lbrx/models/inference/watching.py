"""Matrices of a model by their GGUF names, and functions that see what they are multiplied with."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.weights import Matrix, ModelWeights


@dataclass(frozen=True, slots=True)
class MatrixName:
    """The tensor of GGUF that a matrix is, or is a part of: ``item`` of ``items`` matrices."""

    tensor: str
    item: int
    items: int


def matrix_names(spec: ModelSpec, weights: ModelWeights) -> dict[int, MatrixName]:
    """The names of all matrices of layers, and of the output matrix, by the id of the `Matrix`.

    Matrices of a stack that are in one tensor of the file are numbered in their order.
    """
    known = _gguf_names(spec, weights.names, is_gguf=spec.is_gguf)
    given = _all_matrices(weights)
    seen: Counter[str] = Counter()
    found: dict[int, tuple[str, int]] = {}
    for matrix in given:
        name = matrix.weight.name or ""
        if name not in known or id(matrix) in found:
            continue
        tensor, item = known[name]
        found[id(matrix)] = tensor, seen[name] if item is None else item
        seen[name] += 1
    items: Counter[str] = Counter()
    for tensor, item in found.values():
        items[tensor] = max(items[tensor], item + 1)
    return {key: MatrixName(tensor, item, items[tensor]) for key, (tensor, item) in found.items()}


def matrices_by_name(spec: ModelSpec, weights: ModelWeights) -> dict[str, list[tuple[Matrix, int]]]:
    """All matrices and their numbers in a stack, by the names of their tensors in GGUF."""
    names, found = matrix_names(spec, weights), dict[str, list[tuple[Matrix, int]]]()
    for matrix in _all_matrices(weights):
        if (name := names.get(id(matrix))) is not None:
            found.setdefault(name.tensor, []).append((matrix, name.item))
    return found


def _all_matrices(weights: ModelWeights) -> list[Matrix]:
    return [*matrices_of([(layer.mixer, layer.mlp) for layer in weights.layers]), weights.output]


def gguf_tensors(spec: ModelSpec, names: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """The names in GGUF of tensors of a Hugging Face or MLX model, and the numbers of experts."""
    return _gguf_names(spec, frozenset(names), is_gguf=False)


def gguf_names(spec: ModelSpec, names: Iterable[str]) -> dict[str, str]:
    """The names in GGUF of tensors of a Hugging Face or MLX model."""
    given = frozenset(names)
    known = _gguf_names(spec, given, is_gguf=False)
    return {name: known[name][0] for name in given if name in known}


def _gguf_names(spec: ModelSpec, file_names: frozenset[str], *, is_gguf: bool) -> dict[str, tuple[str, int | None]]:
    """For each name that a tensor can have in this file the name in GGUF, and the number of an expert if it is one."""
    naming = spec.family.naming(file_names)
    known: dict[str, tuple[str, int | None]] = {}
    for weight in spec.family.by_gguf_name.values():
        is_layered = weight in spec.family.layer
        for number in range(len(spec.layers)) if is_layered else (None,):
            tensor = str(weight.gguf).replace("{layer}", str(number))
            if is_gguf:
                known[tensor] = tensor, None
                continue
            if weight.items is not None and weight.mlx is not None:
                known[naming.expand(weight.mlx, number)] = tensor, None
            items = (None,) if weight.items is None else range(spec.config.size(weight.items))
            known.update({naming.expand(weight.name, number, item): (tensor, item) for item in items})
    return known


def matrices_of(node: Any) -> Iterator[Matrix]:
    """All matrices in records and sequences, in their order."""
    if isinstance(node, Matrix):
        yield node
    elif isinstance(node, list | tuple):
        for each in node:
            yield from matrices_of(each)
    elif isinstance(node, dict):
        yield from matrices_of(list(node.values()))
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            yield from matrices_of(getattr(node, field.name))
