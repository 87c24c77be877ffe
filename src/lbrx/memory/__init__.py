"""Memory: the budget of the process, pooled buffers, a cache limited by bytes, and reading ahead.

>>> import lbrx.memory
>>> account = lbrx.memory.Budget("1GiB")
>>> arena = lbrx.memory.MemoryArena(budget=account)
>>> with arena.borrow(1 << 20):
...     account.used_bytes >= 1 << 20
True
"""

from lbrx.memory.arena import MemoryArena
from lbrx.memory.budget import Budget, budget, format_bytes, parse_bytes, set_budget
from lbrx.memory.cache import ByteLRU, CacheStatistics
from lbrx.memory.pooling import PoolStatistics
from lbrx.memory.prefetch import ReadAhead, Span

__all__ = [
    "Budget",
    "ByteLRU",
    "CacheStatistics",
    "MemoryArena",
    "PoolStatistics",
    "ReadAhead",
    "Span",
    "budget",
    "format_bytes",
    "parse_bytes",
    "set_budget",
]
