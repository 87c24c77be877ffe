"""Memory: the budget of the process, pooled buffers, a cache limited by bytes, and reading ahead.

>>> import lbrx.memory
>>> account = lbrx.memory.Budget("1GiB")
>>> arena = lbrx.memory.MemoryArena(budget=account)
>>> with arena.borrow(1 << 20):
...     account.used_bytes >= 1 << 20
True
"""

from typing import TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names
from lbrx.memory.arena import MemoryArena, PoolStatistics
from lbrx.memory.budget import Budget, budget, format_bytes, parse_bytes, set_budget

if TYPE_CHECKING:
    from lbrx.memory.cache import ByteLRU as ByteLRU
    from lbrx.memory.cache import CacheStatistics as CacheStatistics
    from lbrx.memory.prefetch import ReadAhead as ReadAhead
    from lbrx.memory.prefetch import Span as Span
    from lbrx.memory.tensor_cache import TensorCache as TensorCache

__getattr__, __dir__, _lazy = lazy_names(__name__, __file__)
__all__ = [
    *_lazy,
    "Budget",
    "MemoryArena",
    "PoolStatistics",
    "budget",
    "format_bytes",
    "parse_bytes",
    "set_budget",
]
