"""How the values of a quantized tensor are coded."""

from __future__ import annotations

from typing import Any

from lbrx.base.fast_dataclass import dataclass

SCHEMES = {"int8": 8, "int4": 4, "int2": 2}  # integer codings, by their bits
DEFAULT_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class QuantizationInfo:
    """The coding of a quantized tensor: what it takes to turn its bits into numbers again.

    ``scales`` and ``zero_points`` are tensors where the scheme keeps them apart from the codes, and None where
    they lie inside the blocks, as in GGUF's types.
    """

    scheme: str  # such as "q4_k"
    bits: float  # per weight, scales included
    group_size: int
    scales: Any = None
    zero_points: Any = None
