"""Planning a merge: what every tensor of the output is made from, decided from headers before weights are read."""

from lbrx.jobs.merge.plan.merge_plan import plan_merge
from lbrx.jobs.merge.plan.plan import Plan
from lbrx.jobs.merge.plan.records import InputModel, Job, JobInput, StagePlan, TensorInfo

__all__ = [
    "InputModel",
    "Job",
    "JobInput",
    "Plan",
    "StagePlan",
    "TensorInfo",
    "plan_merge",
]
