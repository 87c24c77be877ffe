"""The same plans on a Ray cluster: slots grouped into tasks, computed by workers, journalled by the driver.

Nothing here imports Ray before a cluster is used.
"""

from typing import TYPE_CHECKING

from lbrx.late import late_names

if TYPE_CHECKING:
    from lbrx.cluster.description import PlanSource
    from lbrx.cluster.options import ClusterError, ClusterOptions
    from lbrx.cluster.partition import Partition

__all__ = ["ClusterError", "ClusterOptions", "Partition", "PlanSource"]

__getattr__ = late_names(
    __name__,
    {
        "lbrx.cluster.description": ("PlanSource",),
        "lbrx.cluster.options": ("ClusterError", "ClusterOptions"),
        "lbrx.cluster.partition": ("Partition",),
    },
)
