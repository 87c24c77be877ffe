"""Calibration on a cluster: a task runs a chunk of a text for importances, or encodes a matrix with error feedback.

Results are added up, or stored, in the order of chunks and matrices, so the output has the bytes of one machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.cluster.calls import Call, results_in_order
from lbrx.cluster.connection import Connection, connected, import_ray, nodes_of, task_threads, worker_count
from lbrx.cluster.opened_models import appearance, opened_models
from lbrx.files.remote.paths import is_remote
from lbrx.jobs.imatrix.files import Sums
from lbrx.jobs.imatrix.imatrix import ChunkMeasurer, Ids, measured_here
from lbrx.jobs.quantize.feedback_encoding import Encoded, Known, PieceEncoder, encoded_piece
from lbrx.jobs.quantize.feedback_pieces import Piece
from lbrx.jobs.quantize.feedback_wanted import FeedbackJob, Wanted
from lbrx.models.inference import LanguageModel
from lbrx.settings import settings, using


@dataclass(frozen=True, slots=True)
class ImatrixOrder:
    """Common to all tasks of a measurement; ``appearance`` is that of the model on the driver."""

    job: str
    path: Path
    appearance: str
    with_output: bool
    threads: int
    activation_bits: int


def cluster_imatrix_runner(address: str, threads: int | None) -> ChunkMeasurer:
    """A function that measures chunks of a text on the cluster at an address."""
    import_ray()
    return partial(_measured, address, threads)


def _measured(
    address: str, threads: int | None, model: LanguageModel, chunks: Sequence[Ids], with_output: bool
) -> Iterator[dict[str, Sums]]:
    with connected(address) as connection:
        processors, ahead = _processors(connection, threads)
        path = model.path if is_remote(model.path) else model.path.resolve()
        order = ImatrixOrder(
            uuid.uuid4().hex, path, appearance(model), with_output, processors, settings.activation_bits
        )
        shared = connection.ray.put(order)
        calls = [Call(f"{path}: chunk {number}", (shared, chunk)) for number, chunk in enumerate(chunks, 1)]
        yield from results_in_order(connection, _measure, calls, threads=processors, ahead=ahead)


def _measure(order: ImatrixOrder, chunk: Ids) -> dict[str, Sums]:
    """On a worker: the sums of one chunk."""
    with using(threads=order.threads, activation_bits=order.activation_bits):
        (model,) = opened_models(order.job, (order.path,), (order.appearance,))
        (found,) = measured_here(model, [chunk], order.with_output)
    return found


def _processors(connection: Connection, threads: int | None) -> tuple[int, int]:
    """The threads of a task, and how many tasks are submitted at a time."""
    nodes = nodes_of(connection.ray)
    processors = task_threads(nodes, threads)
    return processors, 2 * worker_count(nodes, processors)


# -- error feedback ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedbackOrder:
    """Common to all tasks of a layer-by-layer run."""

    key: str
    job: FeedbackJob
    threads: int
    activation_bits: int


_wanted: dict[str, Wanted] = {}


@contextmanager
def cluster_feedback_runner(address: str, threads: int | None, job: FeedbackJob) -> Iterator[PieceEncoder]:
    """A function that encodes matrices on the cluster at an address, connected within the block."""
    with connected(address) as connection:
        processors, ahead = _processors(connection, threads)
        order = connection.ray.put(FeedbackOrder(uuid.uuid4().hex, job, processors, settings.activation_bits))

        def encoded(known: Iterable[tuple[Sequence[Piece], Known]]) -> Iterator[tuple[Piece, Encoded]]:
            pieces: list[Piece] = []
            calls: list[Call] = []
            for some, inputs in known:
                shared: Any = connection.ray.put(inputs)
                pieces += some
                calls += [Call(f"matrix {piece.label!r}", (order, piece.label, shared)) for piece in some]
            results = results_in_order(connection, _encode, calls, threads=processors, ahead=ahead)
            yield from zip(pieces, results, strict=True)

        yield encoded


def _encode(order: FeedbackOrder, label: str, known: Known) -> Encoded:
    """On a worker: the blocks or codes of a matrix. A process keeps the plan of the last job."""
    with using(threads=order.threads, activation_bits=order.activation_bits):
        if order.key not in _wanted:
            _wanted.clear()
            _wanted[order.key] = order.job.wanted()
        return encoded_piece(_wanted[order.key].by_label[label], known)
