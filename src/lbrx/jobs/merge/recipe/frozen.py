"""A mapping that cannot be changed, compares by content, hashes and pickles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item", covariant=True)


class FrozenMap(Mapping[Key, Item]):
    """An immutable mapping in insertion order.

    >>> weights = FrozenMap({"weight": 0.5})
    >>> weights["weight"], len(weights), weights == {"weight": 0.5}
    (0.5, 1, True)
    """

    __slots__ = ("_items",)
    _items: dict[Key, Item]

    def __init__(self, items: Mapping[Key, Item] | None = None) -> None:
        object.__setattr__(self, "_items", dict(items or {}))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a FrozenMap cannot be changed: {name!r} was set")

    def __getitem__(self, key: Key) -> Item:
        return self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"

    def __reduce__(self) -> tuple[type[FrozenMap[Key, Item]], tuple[dict[Key, Item]]]:
        return type(self), (self._items,)
