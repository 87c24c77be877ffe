"""From a job to the expression that computes its tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lbrx.engine.bindings import Bindings, Bound, Unbound, UnboundError
from lbrx.errors import TensorNotFound
from lbrx.jobs.merge.methods import Method
from lbrx.jobs.merge.methods.method import MergeContext, UnnamedContext
from lbrx.jobs.merge.plan.records import Job, StagePlan
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.tensor import Tensor


class _InputType(NamedTuple):
    """An input as far as the structure goes."""

    dtype: DType
    shape: Shape

    def unbound(self, number: int) -> Tensor:
        storage = Unbound(number, self.dtype.nbytes(math.prod(self.shape)))
        return Tensor(Source(storage, self.dtype, Layout.contiguous(self.shape)))


class _Template(NamedTuple):
    expr: Expr
    passes: dict[tuple[Any, ...], Any]


class Templates:
    """The expressions of one method and one seed."""

    def __init__(self, method: Method, seed: int) -> None:
        self._method = method
        self._seed = seed
        self._templates: dict[tuple[Any, ...], _Template | None] = {}

    def bound(self, job: Job, inputs: Sequence[Tensor], context: MergeContext) -> Bound | None:
        """The expression of a job, bound to its inputs; None if it has to be made for this job alone."""
        exprs = [tensor.expr for tensor in inputs]
        sources = [expr for expr in exprs if isinstance(expr, Source) and _is_whole(expr)]
        if self._method.is_custom or job.parameters is None or len(sources) < len(exprs):
            return None
        input_types = tuple(_InputType(source.dtype, source.shape) for source in sources)
        signature = job.parameters, job.base_index, job.dtype, input_types
        if signature not in self._templates:
            self._templates[signature] = self._template(job, input_types)
        template = self._templates[signature]
        if template is None:
            return None
        return Bound(template.expr, Bindings([source.storage for source in sources], context.key, template.passes))

    def _template(self, job: Job, input_types: Sequence[_InputType]) -> _Template | None:
        assert job.parameters is not None
        inputs = [each.unbound(number) for number, each in enumerate(input_types)]
        try:
            merged = self._method.merge(inputs, job.base_index, job.parameters, UnnamedContext(self._seed))
        except UnboundError:
            return None
        expr = merged.to(job.dtype).expr
        return None if isinstance(expr, Source) else _Template(expr, {})


def _is_whole(source: Source) -> bool:
    """Whether a source is all of its storage, in order."""
    return source.rows is None and not source.dtype.is_packed and source.layout == Layout.contiguous(source.shape)


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
    return _merged(stage, job, inputs_of(stage, job), _context(stage, job, seed))


def merged_by_template(stage: StagePlan, job: Job, seed: int, templates: Templates) -> Bound:
    """The tensor of a job to be evaluated once, as an expression that it shares with others where that can be."""
    inputs, context = inputs_of(stage, job), _context(stage, job, seed)
    shared = templates.bound(job, inputs, context)
    return Bound(_merged(stage, job, inputs, context).expr) if shared is None else shared


def _context(stage: StagePlan, job: Job, seed: int) -> MergeContext:
    return MergeContext(stage.stream_name(job.name), seed)


def _merged(stage: StagePlan, job: Job, inputs: list[Tensor], context: MergeContext) -> Tensor:
    if job.parameters is None:
        return inputs[0]
    return stage.method.merge(inputs, job.base_index, job.parameters, context).to(job.dtype)


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
