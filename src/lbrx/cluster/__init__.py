"""The same plans on a Ray cluster: slots grouped into tasks, computed by workers, journalled by the driver.

Nothing here imports Ray before a cluster is used.
"""

from typing import TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from lbrx.cluster.options import ClusterError as ClusterError
    from lbrx.cluster.options import ClusterOptions as ClusterOptions
    from lbrx.cluster.partition import Partition as Partition

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
