"""What a plan will cost: bytes, passes, seconds and memory, told before it runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.files.output.plan import write_bytes
from lbrx.jobs.merge.plan.plan import Plan
from lbrx.jobs.merge.plan.records import Job, StagePlan
from lbrx.settings import settings

# How often a method reads its inputs: once to write the result, and before that for sums (1) and for searches of the
# k-th largest element (2 to 3). Methods that are not listed read them once.
PASSES = {
    "slerp": 2,
    "nuslerp": 2,
    "multislerp": 2,
    "karcher": 2,
    "model_stock": 2,
    "ramplus_tl": 2,
    "dare_linear": 2,
    "dare_ties": 2,
    "della": 2,
    "della_linear": 2,
    "ties": 4,
    "breadcrumbs": 4,
    "breadcrumbs_ties": 4,
    "sce": 5,
    "arcee_fusion": 5,
}
_PASS_SECONDS = 2e-4  # of Python for a pass over a tensor, however small that is
_SAMPLE_BYTES = 16 << 20
_PROCESS_BYTES = 100 << 20  # the interpreter, NumPy, compiled kernels and the headers of a model
_CHUNK_BUFFERS = 3  # of 4 bytes an element, for each thread


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan will cost. ``read_bytes`` counts every byte once, however many passes read it."""

    tensors: int
    read_bytes: int
    write_bytes: int
    passes: int  # the most that a tensor needs
    seconds: float
    peak_memory_bytes: int


def estimate(plan: Plan) -> Estimate:
    """The cost of a plan on this machine: about 16 MiB of an input are read to see how fast that is."""
    read_bytes = sum(_input_bytes(plan.stage, job) for job in plan.jobs)
    passes = _passes(plan.stage)
    copy_rate = _copy_rate()
    read_rate = _read_rate(plan)
    seconds = read_bytes / min(read_rate, copy_rate) + ((passes - 1) * read_bytes + write_bytes(plan)) / copy_rate
    seconds += len(plan.jobs) * passes * _PASS_SECONDS
    buffers = settings.threads * settings.chunk_elements * 4 * _CHUNK_BUFFERS
    return Estimate(len(plan.jobs), read_bytes, write_bytes(plan), passes, seconds, _PROCESS_BYTES + buffers)


def _input_bytes(stage: StagePlan, job: Job) -> int:
    total = 0
    for source in job.inputs:
        model = stage.models[source.model]
        if model.stage is None:
            total += model.infos[source.tensor].nbytes
        else:
            total += _input_bytes(model.stage, model.stage.by_name[source.tensor])
    return total


def _passes(stage: StagePlan) -> int:
    """The passes of a stage; what an earlier one finds out first takes passes before them."""
    earlier = [_passes(model.stage) - 1 for model in stage.models if model.stage is not None]
    return PASSES.get(stage.method.name, 1) + max(earlier, default=0)


def _copy_rate() -> float:
    """Bytes per second that this machine copies in memory on one thread, times the threads up to two."""
    source = np.ones(_SAMPLE_BYTES, np.uint8)
    target = np.zeros_like(source)
    started = time.perf_counter()
    np.copyto(target, source)
    elapsed = max(time.perf_counter() - started, 1e-6)
    return _SAMPLE_BYTES / elapsed * min(settings.threads, 2)


def _read_rate(plan: Plan) -> float:
    """Bytes per second that the largest input is read at, from its file's middle."""
    headers = [header for model in plan.models for header in model.files]
    largest = max(headers, key=lambda header: header.file_bytes)
    nbytes = min(_SAMPLE_BYTES, largest.file_bytes)
    buffer = np.zeros(nbytes, np.uint8)
    descriptor = system.open_read(Path(largest.path))
    try:
        started = time.perf_counter()
        system.pread_into(descriptor, buffer, (largest.file_bytes - nbytes) // 2, largest.path)
        return nbytes / max(time.perf_counter() - started, 1e-6)
    finally:
        os.close(descriptor)
