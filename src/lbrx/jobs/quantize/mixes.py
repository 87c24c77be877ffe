"""The rules by which a GGUF file of a type mixes tensor types: those of llama.cpp's ``llama-quantize``.

A rule gives the type of a tensor by its position among those of its role, or None for the base type of the file.
Positions are counted in the order of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.convert.file_types import FileType
from lbrx.jobs.quantize.model_facts import ModelFacts
from lbrx.jobs.quantize.small_mixes import SMALL_MIXES, small_type
from lbrx.models.architectures.gguf_roles import Role


@dataclass(frozen=True, slots=True)
class LayerPosition:
    """The position of a tensor: its layer, the number of layers, and the model.

    ``number`` counts the tensors of its role before it. It is not the layer if a layer has several, or none.
    """

    layer: int
    layers: int
    number: int
    facts: ModelFacts
    has_imatrix: bool


def deserves_more_bits(layer: int, layers: int) -> bool:
    """Whether a layer is of the first or the last eighth, or every third one between.

    >>> [layer for layer in range(16) if deserves_more_bits(layer, 16)]
    [0, 1, 4, 7, 10, 13, 14, 15]
    """
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


Rule = Callable[[LayerPosition], str | None]


def _always(chosen: str) -> Rule:
    return lambda _: chosen


def _with_shared_keys(chosen: str, otherwise: str | None = None) -> Rule:
    return lambda position: chosen if position.facts.shares_keys else otherwise


def _first(count: int, chosen: str, otherwise: str | None = None) -> Rule:
    return lambda position: chosen if position.layer < count else otherwise


def _first_part(divisor: int, chosen: str, otherwise: str | None = None) -> Rule:
    return lambda position: chosen if position.layer < position.layers // divisor else otherwise


def _more(chosen: str, otherwise: str | None = None) -> Rule:
    return lambda position: chosen if deserves_more_bits(position.layer, position.layers) else otherwise


def _if_imatrix_else(chosen: str, otherwise: str) -> Rule:
    return lambda position: chosen if position.has_imatrix else otherwise


def _middle(chosen: str) -> Rule:
    return lambda position: chosen if position.layers // 8 <= position.layer < 7 * position.layers // 8 else None


def _down_of_iq3_m(position: LayerPosition) -> str | None:
    more_bits = position.facts.has_eight_experts and deserves_more_bits(position.layer, position.layers)
    return "q4_k" if more_bits else _first_part(8, "q4_k")(position)


def _if_imatrix(wanted: bool, rule: Rule) -> Rule:
    return lambda position: rule(position) if position.has_imatrix == wanted else None


_VALUE: Mapping[str, Rule] = {
    "q2_k": _with_shared_keys("q4_k", "q3_k"),
    "q2_k_s": _with_shared_keys("q4_k"),
    "q3_k_m": _first(2, "q5_k", "q4_k"),
    "q3_k_l": _always("q5_k"),
    "q4_k_s": _first(4, "q5_k"),
    "q4_k_m": _more("q6_k"),
    "q5_k_m": _more("q6_k"),
    "iq4_nl": _with_shared_keys("q5_k"),
    "iq4_xs": _with_shared_keys("q5_k"),
    "iq3_xxs": lambda position: _with_shared_keys("q4_k")(position) or _if_imatrix_else("iq3_xxs", "iq3_s")(position),
    "iq3_xs": _with_shared_keys("q4_k"),
    "iq3_s": _with_shared_keys("q4_k"),
    "iq3_m": _always("q4_k"),
}
_DOWN: Mapping[str, Rule] = {
    "q2_k": _always("q3_k"),
    "q2_k_s": _first_part(8, "q4_k"),
    "q3_k_m": _first_part(16, "q5_k", "q4_k"),
    "q3_k_l": _always("q5_k"),
    "q4_k_s": _first_part(8, "q5_k"),
    "q4_k_m": _more("q6_k"),
    "q5_k_m": _more("q6_k"),
    "iq4_nl": _if_imatrix(False, _first_part(8, "q5_k")),
    "iq4_xs": _if_imatrix(False, _first_part(8, "q5_k")),
    "iq3_xxs": _if_imatrix(False, _first_part(8, "q4_k", "q3_k")),
    "iq3_m": _down_of_iq3_m,
    # With an importance matrix, these two codings can go wrong in the first layers.
    "q4_0": _if_imatrix(True, _first_part(8, "q4_1")),
    "q5_0": _if_imatrix(True, _first_part(8, "q5_1")),
}
_FALCON_DOWN: Mapping[str, Rule] = {
    **_DOWN,
    "q3_k_m": lambda position: _first_part(16, "q5_k")(position) or _more("q4_k", "q3_k")(position),
    "q3_k_l": _always("q4_k"),
    "q4_k_m": lambda position: _first_part(16, "q6_k")(position) or _more("q5_k", "q4_k")(position),
    "q4_k_s": lambda _: None,
}
_QUERY_OR_KEY: Mapping[str, Rule] = {"iq3_xs": _always("iq3_xxs"), "iq3_xxs": _always("iq2_s")}
_RULES: Mapping[Role, Mapping[str, Rule]] = {
    Role.QUERY: _QUERY_OR_KEY,
    Role.KEY: _QUERY_OR_KEY,
    Role.GATE: {"iq3_xs": _middle("iq3_xxs")},
    Role.UP: {"iq3_xs": _middle("iq3_xxs")},
}
_ATTENTION_OUTPUT = {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_xxs": "iq3_s", "iq3_m": "q4_k"}
_FALCON_ATTENTION_OUTPUT = {"q3_k_l": "q4_k"}
_ATTENTION_OUTPUT_OF_EIGHT_EXPERTS = frozenset(
    ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs", "iq3_xs", "iq3_xxs", "iq3_s", "iq3_m")
)
_EMBEDDING = {"tq1_0": "q4_k", "tq2_0": "q4_k", "q2_0": "q4_k", "iq3_xxs": "iq3_s"}


def block_type(file_type: FileType, role: Role, position: LayerPosition) -> str:
    """The type of a tensor of a block, as a file type has it."""
    facts = position.facts
    small_mix = SMALL_MIXES.get(file_type.name)
    if small_mix is not None:
        return small_type(small_mix, role, position.number, facts) or file_type.base
    if role is Role.VALUE:
        return _value_type(file_type, position)
    if role is Role.KEY and facts.has_eight_experts:
        return "q8_0"
    if role is Role.DOWN:
        rule = (_FALCON_DOWN if facts.is_falcon else _DOWN).get(file_type.name)
        return (rule(position) if rule else None) or file_type.base
    if role is Role.ATTENTION_OUTPUT:
        if facts.is_falcon:
            return _FALCON_ATTENTION_OUTPUT.get(file_type.name, file_type.base)
        if facts.has_eight_experts:
            return "q5_k" if file_type.name in _ATTENTION_OUTPUT_OF_EIGHT_EXPERTS else file_type.base
        return _ATTENTION_OUTPUT.get(file_type.name, file_type.base)
    if role is Role.EMBEDDING:
        return _EMBEDDING.get(file_type.name, file_type.base)
    rule = _RULES.get(role, {}).get(file_type.name)
    return (rule(position) if rule else None) or file_type.base


def _value_type(file_type: FileType, position: LayerPosition) -> str:
    if position.facts.has_eight_experts:
        return "q8_0"
    rule = _VALUE.get(file_type.name)
    chosen = (rule(position) if rule else None) or file_type.base
    return "q5_k" if position.facts.is_large and chosen in ("q3_k", "q4_k") else chosen


def head_type(file_type: FileType, facts: ModelFacts, base_fits: bool) -> str:
    """The type of the output matrix, or of the embedding where that is the output too."""
    if file_type.name == "mxfp4_moe" or facts.is_falcon or not base_fits or file_type.base == "q8_0":
        return "q8_0"
    return "q5_k" if file_type.name in SMALL_MIXES or file_type.name == "iq3_xxs" else "q6_k"
