"""A plan described by the call that makes it: small, and made again by every worker from the same files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError
from lbrx.files.output.plan import OutputPlan, digest
from lbrx.registry import load


@dataclass(frozen=True)
class PlanSource:
    """A call that gives a plan: a function as ``"module:name"``, its arguments, and the directory to call it in.

    ``attribute`` is where the plan stands in what the function returns, if that is not the plan itself.

    >>> PlanSource.merge("recipe.yml", "out", seed=3).function
    'lbrx.jobs.merge.merge:plan_output_of_merge'
    """

    function: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    attribute: str | None = None
    directory: str = field(default_factory=os.getcwd)

    @classmethod
    def merge(cls, recipe: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> PlanSource:
        """The call of ``lbrx.merge``, without the options of the run."""
        return cls("lbrx.jobs.merge.merge:plan_output_of_merge", (recipe, out), options)

    @classmethod
    def convert(cls, source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> PlanSource:
        """The call of ``lbrx.convert``, without the options of the run."""
        return cls("lbrx.jobs.convert.convert:plan_conversion", (source, out), options)

    @classmethod
    def quantize(
        cls, source: str | os.PathLike[str], out: str | os.PathLike[str], quantize_options: Any, **options: Any
    ) -> PlanSource:
        """The call of ``lbrx.quantize``, with what ``parse_options`` returned."""
        return cls(
            "lbrx.jobs.quantize.quantize:plan_quantize", (source, out, quantize_options), options, attribute="output"
        )

    def build(self) -> OutputPlan:
        """Make the plan, in this process."""
        os.chdir(self.directory)
        planned = load(self.function)(*self.arguments, **self.options)
        plan: OutputPlan = planned if self.attribute is None else getattr(planned, self.attribute)
        return plan


def layout_digest(plan: OutputPlan) -> str:
    """A short name for the files of a plan: a worker whose plan has another one sees other models."""
    return digest(*(layout.header for layout in plan.layouts))


def built_alike(source: PlanSource, expected_digest: str) -> OutputPlan:
    """The plan, which must lay out the same files as the driver's."""
    plan = source.build()
    if layout_digest(plan) != expected_digest:
        raise FileError(
            f"{Path(source.directory)}: this worker plans another output than the driver; "
            "expected the same models at the same paths on every node"
        )
    return plan
