"""Leaves of a pass whose elements are in a cache: decoded before, or on the device already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbrx.engine.bind import BoundLeaf, BoundPass
from lbrx.tensors.cached_storage import Cached
from lbrx.tensors.coded import U8, Decode
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import CpuStorage, Storage

if TYPE_CHECKING:
    from lbrx.engine.device import Device


def use_cached_leaves(bound: BoundPass, device: Device) -> None:
    """Let leaves read the values that the cache of their storage keeps for a device."""
    for leaf in bound.leaves:
        storage = leaf.storage
        if isinstance(storage, Cached) and (leaf.codec is not None or device.copies(storage, leaf.dtype)):
            kept = _kept(leaf, storage, device, bound.elements)
            if kept is not None:
                leaf.storage, leaf.codec, leaf.numbers = kept, None, ()


def _kept(leaf: BoundLeaf, storage: Cached, device: Device, used_elements: int) -> Storage | None:
    coding: tuple[object, ...] = ()
    if leaf.codec is None:
        nbytes = storage.uncached.nbytes
        elements = nbytes * 8 // leaf.dtype.bits
    else:
        numbers = [each for each in leaf.numbers if each is not None]
        if not all(isinstance(each, Cached) for each in numbers):
            return None
        keys = (each.key if isinstance(each, Cached) else None for each in leaf.numbers)
        coding = (leaf.codec, leaf.dtype.name, *keys)
        elements = leaf.codec.elements_in(storage.uncached.nbytes)
        nbytes = leaf.dtype.nbytes(elements)
    if not elements:
        return None
    kept: Storage | None = storage.cache.get_or_create(
        (device.name, coding, storage.key),
        nbytes,
        min(1.0, used_elements / elements),
        lambda: _made(leaf, storage, device),
    )
    return kept


def _made(leaf: BoundLeaf, storage: Cached, device: Device) -> Storage:
    """All elements of a storage on a device."""
    if leaf.codec is None:
        return device.store(CpuStorage(storage.uncached.read_at(0, storage.uncached.nbytes)))
    from lbrx.engine.evaluate import evaluate_stores

    layout = Layout.contiguous((leaf.codec.elements_in(storage.uncached.nbytes),))
    parts = tuple(_bytes(each) for each in (storage.uncached, *leaf.numbers))
    target = device.destination(leaf.dtype, layout.elements)
    evaluate_stores([(Decode(parts, leaf.codec, layout), target)])
    return target.storage


def _bytes(storage: Storage | None) -> Source | None:
    plain = storage.uncached if isinstance(storage, Cached) else storage
    return None if plain is None else Source(plain, U8, Layout.contiguous((plain.nbytes,)))
