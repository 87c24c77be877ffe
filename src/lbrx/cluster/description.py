"""A plan described by the call that makes it: small, and made again by every worker from the same files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError
from lbrx.files.output.plan import OutputPlan, digest
from lbrx.registry import load


@dataclass(frozen=True)
class PlanSource:
    """A call that gives a plan: a function as ``"module:name"``, its arguments, and the directory to call it in.

    >>> from functools import partial
    >>> PlanSource.of(partial(digest, b"plan")).function
    'lbrx.files.output.plan:digest'
    """

    function: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    directory: str = field(default_factory=os.getcwd)

    @classmethod
    def of(cls, plan_call: partial[Any]) -> PlanSource:
        """A call of a function that can be imported."""
        function = plan_call.func
        return cls(f"{function.__module__}:{function.__name__}", plan_call.args, plan_call.keywords)

    def build(self) -> OutputPlan:
        """Make the plan, in this process."""
        os.chdir(self.directory)
        plan: OutputPlan = load(self.function)(*self.arguments, **self.options)
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
