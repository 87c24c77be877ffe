"""Mixers that read the same hidden states, and whose results are added."""

from __future__ import annotations

from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.mixer_records import Sum
from lbrx.models.inference.parts import LayerRun, Memory, PartCode, code_of
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Reader


@dataclass(frozen=True, slots=True)
class SumWeights:
    """For each mixer its record, its weights, and the factors of its input and result."""

    mixers: tuple[tuple[Any, Any, float, float], ...]


def memory(part: Sum, config: Config, local: dict[str, Any]) -> Memory:
    memories = [code_of(mixer).memory(mixer, config, local) for mixer in part.mixers]
    keys = next((each.keys for each in memories if each.keys is not None), None)
    return Memory(keys, tuple(state for each in memories for state in each.states))


def read(reader: Reader, part: Sum, layer: LayerSpec) -> SumWeights:
    config = reader.spec.config
    return SumWeights(
        tuple(
            (mixer, code_of(mixer).read(reader, mixer, layer), config.real(before), config.real(after))
            for mixer, (before, after) in zip(part.mixers, part.factors, strict=True)
        )
    )


def run(values: Floats, weights: SumWeights, run: LayerRun) -> Floats:
    total: Floats | None = None
    for mixer, mixer_weights, before, after in weights.mixers:
        result = _times(code_of(mixer).run(_times(values, before), mixer_weights, run), after)
        total = result if total is None else total + result
    assert total is not None
    return total


def _times(values: Floats, factor: float) -> Floats:
    return values if factor == 1 else values * np.float32(factor)


SUM = PartCode(read, run, memory)
