"""The inputs of an expert, which gets few tokens of a text, or none.

For matrices that read the same input as the router, all tokens of the text count a little. Columns of the others have
no counterpart in other experts: the fewer tokens, the less the dependence between columns counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.quantize.feedback_pieces import Piece
from lbrx.models.inference.drift import DriftGram
from lbrx.models.inference.weights import Floats

MOST_GRAM_BYTES = 1 << 30
_OTHER_TOKENS = 0.25  # for each column: as many tokens of the text count as inputs of the expert


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a matrix: sums, how far to trust them, and the mean square of each column."""

    total: Floats
    drift: Floats | None
    shrink: float
    drift_share: float
    importance: Floats


def known_inputs(gram: DriftGram, shrink: float, drift_share: float) -> Inputs:
    """The inputs of a matrix that sees all tokens."""
    importance = (gram.total.diagonal() / np.float32(max(gram.count, 1))).astype(np.float32)
    return Inputs(gram.total, gram.drift if gram.drift.any() else None, shrink, drift_share, importance)


def expert_inputs(gram: DriftGram, of_all: DriftGram | None, shrink: float, drift_share: float) -> Inputs:
    """The inputs of a matrix of an expert; ``of_all`` are those of the router, if the matrix has the same input.

    >>> few, many = DriftGram(np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32), 1), DriftGram.of_size(2)
    >>> many.add(np.ones((10, 2), np.float32), None)
    >>> expert_inputs(few, many, 0.2, 0.4).total.tolist()
    [[1.5, 0.5], [0.5, 1.5]]
    >>> round(expert_inputs(few, None, 0.2, 0.4).shrink, 3)
    0.467
    """
    others = _OTHER_TOKENS * len(gram.total)
    trust = gram.count / (gram.count + others)
    if of_all is not None and of_all.count:
        total = gram.total + of_all.total * np.float32(others / of_all.count)
        blended = DriftGram(total, gram.drift, math.ceil(gram.count + others))
        return known_inputs(blended, shrink, drift_share * trust)
    if gram.count == 0:
        size = len(gram.total)
        return Inputs(np.eye(size, dtype=np.float32), None, 1.0, 0.0, np.ones(size, np.float32))
    return known_inputs(gram, 1.0 - (1.0 - shrink) * trust, drift_share * trust)


def in_groups(pieces: Iterable[Piece], most_bytes: int) -> list[list[str]]:
    """The names of matrices, in groups. Gram matrices of a group take at most so many bytes, or are of one expert.

    Matrices that are not in a stack are in the first group.
    """
    groups: list[list[str]] = [[]]
    experts: dict[int, list[Piece]] = {}
    for piece in pieces:
        if piece.item is None:
            groups[0].append(piece.label)
        else:
            experts.setdefault(piece.item, []).append(piece)
    held = 0
    for _, own in sorted(experts.items()):
        needed = _gram_bytes(own)
        if held and held + needed > most_bytes:
            groups.append([])
            held = 0
        groups[-1] += [piece.label for piece in own]
        held += needed
    return groups


def _gram_bytes(pieces: Sequence[Piece]) -> int:
    """The bytes of the sums of an expert: matrices with the same input share them."""
    return sum(2 * 4 * columns**2 for columns in {piece.columns for piece in pieces})


def unused_warning(layer: int, unused: Sequence[int], count: int) -> str:
    """A warning about experts that get no token of the texts.

    >>> unused_warning(3, [5], 8)
    'layer 3: 1 of 8 experts gets no token of the texts: 5'
    """
    verb = "gets" if len(unused) == 1 else "get"
    return f"layer {layer}: {len(unused)} of {count} experts {verb} no token of the texts: {_some(unused)}"


def _some(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return text if len(numbers) <= 8 else f"{text}, ..."
