"""The mixes of the file types below three bits, IQ1_S to IQ2_M, which have rules of their own in ``llama-quantize``."""

from __future__ import annotations

from collections.abc import Mapping

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.quantize.model_facts import ModelFacts
from lbrx.models.architectures.gguf_roles import Role


@dataclass(frozen=True, slots=True)
class SmallMix:
    """Types of a file: ``better`` is that of tensors that matter more than most."""

    better: str
    attention_output: str | None = None


_WITH_Q2_K = SmallMix("q2_k")
_WITH_IQ3_S = SmallMix("iq3_s", "iq3_s")
SMALL_MIXES: Mapping[str, SmallMix] = {
    "iq1_s": SmallMix("q2_k", "iq2_xxs"),
    "iq1_m": SmallMix("q2_k", "iq2_xxs"),
    "iq2_xxs": _WITH_Q2_K,
    "iq2_xs": _WITH_Q2_K,
    "iq2_s": _WITH_IQ3_S,
    "iq2_m": _WITH_IQ3_S,
}


def small_type(mix: SmallMix, role: Role, number: int, facts: ModelFacts) -> str | None:
    """The type of a tensor of a block, or None for the base type of the file.

    ``number`` counts the tensors of the role before this one, also if a layer has several.

    >>> from lbrx.jobs.quantize.model_facts import ModelFacts
    >>> facts = ModelFacts("llama", layers=16, queries_per_key=1, experts=0, is_large=False)
    >>> [small_type(SMALL_MIXES["iq2_m"], Role.DOWN, number, facts) for number in (1, 2)]
    ['iq3_s', None]
    """
    if role is Role.EMBEDDING:
        return mix.better
    if role is Role.VALUE:
        return "q4_k" if facts.shares_keys or facts.experts >= 4 else mix.better
    if role is Role.KEY and facts.has_eight_experts:
        return "q4_k"
    if role is Role.DOWN and number < facts.layers // 8:
        return mix.better
    if role is Role.ATTENTION_OUTPUT:
        return "q5_k" if facts.has_eight_experts else mix.attention_output
    return None
