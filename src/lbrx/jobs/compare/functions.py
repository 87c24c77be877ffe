"""``lbrx.diff`` and ``lbrx.compare``: two models by their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lbrx.files.checkpoint.opening import contents_format, open_checkpoint
from lbrx.files.output.options import CountCallback
from lbrx.jobs.compare.diff import ModelDiff, diff_models
from lbrx.jobs.compare.measuring import DEFAULT_BLOCKS, compare_models
from lbrx.jobs.compare.models import open_alike, open_pair
from lbrx.jobs.compare.ranks import change_ranks
from lbrx.jobs.compare.records import Comparison
from lbrx.tensors.tensor import Tensor

PathLike = str | os.PathLike[str]


def diff(
    a: PathLike,
    b: PathLike,
    base: PathLike | None = None,
    *,
    pattern: str | None = None,
    progress: CountCallback | None = None,
) -> ModelDiff:
    """Compare two models tensor by tensor; with a ``base``, also what each changed of it. Formats may differ.

    ``pattern`` selects tensors: ``'*.q_proj.*'``, or part of a name. ``progress`` is called with tensors done, tensors
    in all, and a name.

    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> diff(models.base, models.code, pattern="q_proj").tensors[0].sums.relative_change > 0
    True
    """
    paths = [Path(path) for path in (a, b, base) if path is not None]
    opened = _opened(paths)
    found = diff_models(*opened, pattern=pattern, progress=progress)
    return replace(found, ranks=change_ranks(found, opened[0], opened[1], opened[2] if len(opened) > 2 else None))


def _opened(paths: Sequence[Path]) -> list[Mapping[str, Tensor]]:
    """Open models; if their formats differ, with the names of Hugging Face."""
    models = [open_checkpoint(path) for path in paths]
    if len({contents_format(model) for model in models}) == 1:
        return [*models]
    return [*open_alike(paths)]


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
