"""Encodes a matrix for its inputs: as blocks of GGUF, or as integers in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.quantize.feedback_experts import Inputs
from lbrx.jobs.quantize.feedback_pieces import Piece
from lbrx.jobs.quantize.feedback_wanted import FeedbackJob
from lbrx.jobs.quantize.group_codes import encode_rows, finite_rows
from lbrx.models.inference.weights import Floats
from lbrx.ops.feedback import encode_with_feedback
from lbrx.ops.feedback_factors import ColumnFactors, drift_correction, feedback_factors
from lbrx.ops.group_feedback import GroupCodes
from lbrx.registry import RUNNERS, load

Encoded: TypeAlias = GroupCodes | bytes


@dataclass(frozen=True, slots=True)
class Known:
    """The inputs of a matrix, for encoding: importances, factors of the Gram matrix, correction of drift."""

    importance: Floats
    factors: ColumnFactors
    correction: Floats | None


PieceEncoder: TypeAlias = Callable[[Iterable[tuple[Sequence[Piece], Known]]], Iterator[tuple[Piece, Encoded]]]


def known_from(inputs: Inputs) -> Known:
    """Factor the sums of inputs."""
    correction = None
    if inputs.drift is not None:
        correction = drift_correction(inputs.total, inputs.drift, inputs.drift_share)
    return Known(inputs.importance, feedback_factors(inputs.total, inputs.shrink), correction)


def encoded_piece(piece: Piece, known: Known) -> Encoded:
    """The blocks or codes of a matrix."""
    values, grouped = piece.values(), piece.coded.grouped
    if grouped is not None:
        return encode_rows(piece.label, values, grouped.spec, known.importance, known.factors, known.correction)
    parts = [
        encode_with_feedback(rows, piece.coded.choice.type_name, known.importance, known.factors).tobytes()
        for rows in finite_rows(piece.label, values, known.correction)
    ]
    return b"".join(parts)


def encoded_here(known: Iterable[tuple[Sequence[Piece], Known]]) -> Iterator[tuple[Piece, Encoded]]:
    """Encode matrices one after the other; yields each with its blocks or codes."""
    for pieces, inputs in known:
        for piece in pieces:
            yield piece, encoded_piece(piece, inputs)


@contextmanager
def piece_encoder(job: FeedbackJob, cluster: str | None, threads: int | None) -> Iterator[PieceEncoder]:
    """A function that encodes matrices: on this machine, or on the cluster at an address."""
    if cluster is None:
        yield encoded_here
        return
    with load(RUNNERS["feedback"])(cluster, threads, job) as encoder:
        yield encoder
