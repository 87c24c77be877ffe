"""Matrices that error feedback encodes: their names in a model, and their blocks and codes in a folder.

A stack of experts is encoded matrix by matrix. When all of its matrices are in the folder, they become one file.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import remove_file
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.quantize.coded import CodedTensor
from lbrx.jobs.quantize.group_codes import codes_path, store, store_joined, stored_group_values
from lbrx.models.architectures.mlx_experts import mlx_weights
from lbrx.models.inference.experts import ExpertWeights
from lbrx.models.inference.watching import matrices_of
from lbrx.models.inference.weights import LayerWeights
from lbrx.ops.group_feedback import GroupCodes
from lbrx.tensors.coded import stored_expr
from lbrx.tensors.storage import MmapStorage
from lbrx.tensors.tensor import Tensor

_GGUF_STACK = re.compile(r"_exps\.weight$")
_WARNINGS_NAME = "warnings.json"


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A matrix of a model: a tensor of the output, or matrix ``item`` of a stack."""

    label: str
    coded: CodedTensor
    item: int | None = None

    @property
    def columns(self) -> int:
        return self.coded.source.shape[-1]

    def values(self) -> Tensor:
        """The values, in f32."""
        whole = self.coded.source.make()
        return (whole if self.item is None else whole.dequantize()[self.item]).dequantize().to("f32")


def pieces_of(coded: CodedTensor, mlx_names: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    """The matrices of a tensor; ``mlx_names`` has the tensors of the model that a tensor of MLX is made of."""
    tensor = coded.source
    names = mlx_names.get(tensor.name)
    if len(tensor.shape) == 2:
        yield Piece(tensor.name if names is None else names[0], coded)
        return
    if len(tensor.shape) != 3 or (names is None and not _GGUF_STACK.search(tensor.name)):
        return
    for item in range(tensor.shape[0]):
        yield Piece(item_label(tensor.name, item) if names is None else names[item], coded, item)


def mlx_names_of(config: Mapping[str, object] | None, names: Sequence[str]) -> dict[str, Sequence[str]]:
    """The tensors of Hugging Face that the tensors of an MLX model are made of."""
    return {name: weights.names for name, weights in mlx_weights(config, names).items()}


def item_label(name: str, item: int) -> str:
    """The name of a matrix of a stack.

    >>> item_label("blk.0.ffn_up_exps.weight", 3)
    'blk.0.ffn_up_exps.weight[3]'
    """
    return f"{name}[{item}]"


def layer_labels(weights: LayerWeights, stacks: frozenset[str]) -> dict[int, str]:
    """The names of all matrices of a layer, by their ids. Those of stacks are numbered in their order."""
    seen: Counter[str] = Counter()
    found: dict[int, str] = {}
    for matrix in matrices_of((weights.mixer, weights.mlp, weights.after)):
        name = matrix.weight.name
        if name is None or id(matrix) in found:
            continue
        found[id(matrix)] = item_label(name, seen[name]) if name in stacks else name
        seen[name] += 1
    return found


def inner_labels(weights: LayerWeights, labels: Mapping[int, str]) -> frozenset[str]:
    """The names of the matrices of experts whose inputs are those of the router."""
    experts = weights.mlp.experts if isinstance(weights.mlp, ExpertWeights) else ()
    return frozenset(labels[id(each)] for expert in experts for each in expert.inner if id(each) in labels)


def router_label(weights: LayerWeights, labels: Mapping[int, str]) -> str | None:
    """The name of the router of a layer, if it has one."""
    return labels.get(id(weights.mlp.router)) if isinstance(weights.mlp, ExpertWeights) else None


# -- the folder --------------------------------------------------------------------------------------------------------


def stored_blocks(folder: Path, tensor: PlannedTensor, type_name: str) -> Tensor | None:
    """The blocks of a tensor in a folder, or None."""
    path = _blocks_path(folder, tensor.name, type_name)
    if not path.exists():
        return None
    return Tensor(stored_expr(MmapStorage.from_file(path), type_name, tensor.shape))


def stored_values(folder: Path, coded: CodedTensor, item: int | None = None) -> Tensor | None:
    """The values of an encoded tensor, or of a matrix of a stack, or None."""
    if coded.grouped is None:
        blocks = stored_blocks(folder, coded.source, coded.choice.type_name)
        return blocks if blocks is None or item is None else blocks.dequantize()[item]
    rows = coded.source.shape[-2]
    own = slice(None) if item is None else slice(item * rows, (item + 1) * rows)
    return stored_group_values(folder, coded.source.name, own)


def is_stored(folder: Path, piece: Piece) -> bool:
    """Whether a matrix is in a folder, on its own or with its stack."""
    return _path(folder, piece.coded, None).exists() or _path(folder, piece.coded, piece.item).exists()


def store_piece(folder: Path, piece: Piece, encoded: GroupCodes | bytes) -> None:
    """Keep the blocks or codes of a matrix."""
    if isinstance(encoded, GroupCodes):
        store(_path(folder, piece.coded, piece.item), encoded)
    else:
        write_atomically(_path(folder, piece.coded, piece.item), encoded, sync=False)


def join_items(folder: Path, coded: CodedTensor) -> None:
    """Make one file of the matrices of a stack, if all of them are there."""
    items = math.prod(coded.source.shape[:-2])
    paths = [_path(folder, coded, item) for item in range(items)]
    whole = _path(folder, coded, None)
    if len(coded.source.shape) == 2 or whole.exists() or not all(path.exists() for path in paths):
        return
    if coded.grouped is not None:
        store_joined(whole, paths)
    else:
        partial = whole.with_suffix(".partial")
        with partial.open("wb") as out:
            for path in paths:
                with path.open("rb") as file:
                    shutil.copyfileobj(file, out)
        partial.replace(whole)
    for path in paths:
        remove_file(path)


def add_warning(folder: Path, text: str) -> None:
    """Keep a warning for the summary."""
    found = list(dict.fromkeys([*feedback_warnings(folder), text]))
    write_atomically(folder / _WARNINGS_NAME, json.dumps(found).encode(), sync=False)


def feedback_warnings(folder: Path) -> tuple[str, ...]:
    """The warnings of a folder."""
    path = folder / _WARNINGS_NAME
    return tuple(json.loads(path.read_text())) if path.exists() else ()


def _path(folder: Path, coded: CodedTensor, item: int | None) -> Path:
    name = coded.source.name if item is None else item_label(coded.source.name, item)
    if coded.grouped is not None:
        return codes_path(folder, name)
    return _blocks_path(folder, name, coded.choice.type_name)


def _blocks_path(folder: Path, name: str, type_name: str) -> Path:
    return folder / f"{name}.{type_name}.blocks"
