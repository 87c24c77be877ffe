"""A merge's expressions by their structure: one for all tensors that differ in their values and names alone.

A model has thousands of tensors of a few shapes. A method is called once for each kind of them, over inputs without
values; one that looks at values is called for every tensor instead, and so is a user's own, which may look at anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from lbrx.engine.bindings import Bindings, Bound, Unbound, UnboundError
from lbrx.jobs.merge.methods import Method
from lbrx.jobs.merge.methods.context import MergeContext, UnnamedContext
from lbrx.jobs.merge.plan.records import Job
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr, Source
from lbrx.tensors.shape import Layout, Shape
from lbrx.tensors.tensor import Tensor


class _Input(NamedTuple):
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
        input_types = tuple(_Input(source.dtype, source.shape) for source in sources)
        signature = job.parameters, job.base_index, job.dtype, input_types
        if signature not in self._templates:
            self._templates[signature] = self._template(job, input_types)
        template = self._templates[signature]
        if template is None:
            return None
        return Bound(template.expr, Bindings([source.storage for source in sources], context.key, template.passes))

    def _template(self, job: Job, input_types: Sequence[_Input]) -> _Template | None:
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
