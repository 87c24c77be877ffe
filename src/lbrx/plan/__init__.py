"""Planning a merge: what every tensor of the output is made from, decided from headers before weights are read."""

from lbrx.plan.merge_plan import plan_merge
from lbrx.plan.plan import Plan
from lbrx.plan.records import DEFAULT_SHARD_BYTES, InputModel, Job, JobInput, StagePlan, TensorInfo

__all__ = [
    "DEFAULT_SHARD_BYTES",
    "InputModel",
    "Job",
    "JobInput",
    "Plan",
    "StagePlan",
    "TensorInfo",
    "plan_merge",
]
