"""From a job to the expression that computes its tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from lbrx.engine.plan_cache import Planned, PlannedCalls
from lbrx.errors import TensorNotFound
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.plan.records import Job, StagePlan
from lbrx.tensors.expr import Expr
from lbrx.tensors.tensor import Tensor


def inputs_of(stage: StagePlan, job: Job) -> list[Tensor]:
    """The input tensors of a job, with the rows of the output's vocabulary."""
    if stage.vocabulary is None or not job.is_vocabulary:
        return [stage.models[source.model].tensors[source.tensor] for source in job.inputs]
    own = [(index, model, model.find(job.name)) for index, model in enumerate(stage.models)]
    tensors = {index: model.tensors[name] for index, model, name in own if name is not None}
    return stage.vocabulary.aligned([source.model for source in job.inputs], tensors)


def merged(stage: StagePlan, job: Job, seed: int) -> Tensor:
    """The tensor of a job as an expression in its output type.

    A method that needs scalars of its inputs first, such as karcher, reads the inputs here.
    """
    return _merged(stage, job, seed, inputs_of(stage, job))


def _merged(stage: StagePlan, job: Job, seed: int, inputs: list[Tensor]) -> Tensor:
    if job.parameters is None:
        return inputs[0] if inputs[0].dtype is job.dtype else inputs[0].to(job.dtype)
    context = _context(stage, job, seed)
    return stage.method.merge(inputs, job.base_index, job.parameters, context).to(job.dtype)


def _context(stage: StagePlan, job: Job, seed: int) -> MergeContext:
    grams = None if stage.inputs is None else partial(stage.inputs.gram, stage, job)
    return MergeContext(stage.stream_name(job.name), seed, grams)


def merged_by(calls: PlannedCalls, stage: StagePlan, job: Job, seed: int) -> Planned | Expr:
    """The tensor of a job to be evaluated; the function of a built-in method is called once for each type of job."""
    inputs = inputs_of(stage, job)
    if stage.method.is_custom or stage.inputs is not None or job.parameters is None:
        return _merged(stage, job, seed, inputs).expr
    context = _context(stage, job, seed)
    key = (id(job.parameters), job.base_index, job.dtype.name, context.is_vocabulary)
    exprs = [tensor.expr for tensor in inputs]
    return calls.planned(key, exprs, context.key, lambda: _merged(stage, job, seed, inputs).expr)


class StageTensors(Mapping[str, Tensor]):
    """The tensors of a stage, made into expressions when they are asked for.

    A later stage computes with these expressions in its own passes: the values are those that a file between the two
    stages would hold, rounded to the stage's type, but there is no file.
    """

    def __init__(self, stage: StagePlan, seed: int) -> None:
        self._stage = stage
        self._seed = seed
        self._latest: tuple[str, Tensor] | None = None  # two models of one job may be made from the same stage

    def __getitem__(self, name: str) -> Tensor:
        latest = self._latest
        if latest is None or latest[0] != name:
            job = self._stage.by_name.get(name)
            if job is None:
                raise TensorNotFound(f"stage {self._stage.recipe.name!r} has no tensor {name!r}")
            latest = self._latest = (name, merged(self._stage, job, self._seed))
        return latest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stage.by_name)

    def __len__(self) -> int:
        return len(self._stage.jobs)
