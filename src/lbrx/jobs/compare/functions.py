"""``lbrx.diff`` and ``lbrx.compare``: two models by their paths."""

from __future__ import annotations

import os
from pathlib import Path

from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.output.options import CountCallback
from lbrx.jobs.compare.diff import ModelDiff, diff_models
from lbrx.jobs.compare.measuring import DEFAULT_BLOCKS, compare_models
from lbrx.jobs.compare.models import open_pair
from lbrx.jobs.compare.records import Comparison

PathLike = str | os.PathLike[str]


def diff(
    a: PathLike,
    b: PathLike,
    base: PathLike | None = None,
    *,
    pattern: str | None = None,
    progress: CountCallback | None = None,
) -> ModelDiff:
    """Compare two models of one format tensor by tensor; with a ``base``, also what each changed of it.

    ``pattern`` selects tensors: ``'*.q_proj.*'``, or part of a name. ``progress`` is called with tensors done, tensors
    in all, and a name.

    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> diff(models.base, models.code, pattern="q_proj").tensors[0].sums.relative_change > 0
    True
    """
    first, second = (open_checkpoint(Path(path)) for path in (a, b))
    origin = None if base is None else open_checkpoint(Path(base))
    return diff_models(first, second, origin, pattern=pattern, progress=progress)


def compare(
    a: PathLike,
    b: PathLike,
    *,
    blocks: int = DEFAULT_BLOCKS,
    pattern: str | None = None,
    progress: CountCallback | None = None,
) -> Comparison:
    """Measure what a conversion or quantization of model ``a`` into ``b`` changed; formats may differ.

    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> compare(models.base, models.base, pattern="norm").tensors[0].relative_error
    0.0
    """
    return compare_models(*open_pair(Path(a), Path(b)), blocks=blocks, pattern=pattern, progress=progress)
