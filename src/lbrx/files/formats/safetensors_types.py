"""The element types of SafeTensors files: those that lbrx computes with, and those that it only carries."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.tensors.dtype import BY_SAFETENSORS, DType


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type of the format.

    >>> ELEMENT_TYPES["F6_E2M3"].name, ELEMENT_TYPES["F6_E2M3"].bits
    ('f6_e2m3', 6)
    """

    id: str
    name: str
    bits: int
    dtype: DType | None


_EXTRA_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
}

ELEMENT_TYPES: dict[str, ElementType] = {
    **{type_id: ElementType(type_id, row.name, row.bits, row) for type_id, row in BY_SAFETENSORS.items()},
    **{type_id: ElementType(type_id, type_id.lower(), bits, None) for type_id, bits in _EXTRA_BITS.items()},
}
BY_NAME: dict[str, ElementType] = {row.name: row for row in ELEMENT_TYPES.values()}
