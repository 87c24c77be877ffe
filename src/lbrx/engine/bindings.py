"""Expressions that are built once and evaluated for many tensors.

Such an expression has unbound storages and unnamed random streams as inputs, and each evaluation binds them. The
programs of its passes depend only on its structure and are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.expr import Counter, Expr, Source
from lbrx.tensors.storage import Bytes, Storage

StreamKey = tuple[int, int]
UNNAMED = -1  # the first word of the key of a stream that has no name yet; the second is its number
MOST_KEPT_PASSES = 64  # of one expression


class UnboundError(Exception):
    """The expression depends on values or names, so it cannot be shared by several tensors."""


class Unbound:
    """A storage that stands for another one, by its number."""

    __slots__ = ("nbytes", "number")
    device = "cpu"

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes

    @property
    def address(self) -> NoReturn:
        raise UnboundError

    def read_at(self, _offset: int, _length: int) -> Bytes:
        raise UnboundError

    def read_into(self, _offset: int, _buffer: Bytes) -> None:
        raise UnboundError


def _no_key(_number: int) -> StreamKey:
    raise UnboundError


@dataclass(frozen=True, slots=True)
class Bindings:
    """What unbound storages and unnamed streams stand for in one evaluation.

    ``passes``: those that earlier evaluations of the same expression have put together.
    """

    storages: Sequence[Storage] = ()
    key_of: Callable[[int], StreamKey] = _no_key
    passes: dict[tuple[Any, ...], Any] | None = None

    def storage(self, source: Source) -> Storage:
        """Where the elements of a source are."""
        storage = source.storage
        if not isinstance(storage, Unbound):
            return storage
        if not self.storages:
            raise UnboundError
        return self.storages[storage.number]

    def key(self, counter: Counter) -> StreamKey:
        """The key of a counter's stream."""
        first, number = counter.key
        return self.key_of(number) if first == UNNAMED else counter.key


NOTHING_BOUND = Bindings()


class Bound(NamedTuple):
    """An expression with what it is evaluated for."""

    expr: Expr
    bindings: Bindings = NOTHING_BOUND
