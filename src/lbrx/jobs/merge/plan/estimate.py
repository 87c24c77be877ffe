"""What a plan will cost: bytes, passes, seconds and memory, before it runs."""

from __future__ import annotations

import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.plan_cache import passes_of
from lbrx.files.output.plan import output_bytes
from lbrx.jobs.merge.plan.plan import Plan, stages_of
from lbrx.jobs.merge.plan.records import Job, StagePlan
from lbrx.settings import settings

Structure: TypeAlias = tuple[Any, ...]
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
    passes = _passes(plan)
    copy_rate = _copy_rate()
    read_rate = _read_rate(plan)
    seconds = read_bytes / min(read_rate, copy_rate) + ((passes - 1) * read_bytes + output_bytes(plan)) / copy_rate
    seconds += len(plan.jobs) * passes * _PASS_SECONDS
    buffers = settings.threads * settings.chunk_elements * 4 * _CHUNK_BUFFERS
    return Estimate(len(plan.jobs), read_bytes, output_bytes(plan), passes, seconds, _PROCESS_BYTES + buffers)


def _input_bytes(stage: StagePlan, job: Job) -> int:
    total = 0
    for source in job.inputs:
        model = stage.models[source.model]
        if model.stage is None:
            total += model.infos[source.tensor].nbytes
        else:
            total += _input_bytes(model.stage, model.stage.by_name[source.tensor])
    return total


def _passes(plan: Plan) -> int:
    """The most passes that a tensor needs: of each structure, the smallest tensor is counted."""
    if any(stage.inputs is not None for stage in stages_of(plan.stage)):
        return 1  # the inputs that its expressions depend on are not measured yet
    smallest: dict[Structure, Job] = {}
    for job in plan.jobs:
        if job.is_copy:
            continue
        structure = _structure(plan.stage, job)
        if structure not in smallest or math.prod(job.shape) < math.prod(smallest[structure].shape):
            smallest[structure] = job
    most = 1
    for job in sorted(smallest.values(), key=lambda job: -len(job.shape)):
        passes, reads_values = passes_of(partial(plan.tensor, job.name))
        most = max(most, passes)
        if reads_values:  # one such tensor is enough: the others would be read, too
            break
    return most


def _structure(stage: StagePlan, job: Job) -> Structure:
    """What the passes of a tensor depend on: parameters and axes, in this stage and in earlier ones."""
    sources = [(stage.models[source.model].stage, source.tensor) for source in job.inputs]
    earlier = [_structure(each, each.by_name[tensor]) for each, tensor in sources if each is not None]
    return job.parameters, job.base_index, len(job.shape), len(job.inputs), *earlier


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
