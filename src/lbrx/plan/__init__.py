"""Planning a merge: what every tensor of the output is made from, decided from headers before weights are read."""

from lbrx.plan.expressions import inputs_of, merged
from lbrx.plan.merge_plan import plan_merge
from lbrx.plan.records import (
    DEFAULT_SHARD_BYTES,
    InputModel,
    Job,
    JobInput,
    Plan,
    SideFile,
    StagePlan,
    TensorInfo,
)

__all__ = [
    "DEFAULT_SHARD_BYTES",
    "InputModel",
    "Job",
    "JobInput",
    "Plan",
    "SideFile",
    "StagePlan",
    "TensorInfo",
    "inputs_of",
    "merged",
    "plan_merge",
]
