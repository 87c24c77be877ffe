"""Element-wise work on bf16 alone, two neighbours at a time.

Two bf16 are a word of 32 bits: one is widened by a shift and the other by a mask, and two results are put together
likewise. Vectors of such words need none of the steps that make 32 bits of 16 and back: a fourth of ``x + y``.
"""

from __future__ import annotations

import re

from lbrx.devices.cpu.codegen.lines import SourceLines
from lbrx.devices.cpu.codegen.values import Values
from lbrx.engine.program import FLAT


def _can_pair(values: Values) -> bool:
    """Whether all that a program does is to store bf16 made of bf16, element by element, whatever their places are."""
    program = values.program
    if program.mode != FLAT or [(sink.op, sink.type) for sink in program.sinks] != [("store", "bf16")]:
        return False
    root = program.sinks[0].args[0]
    needed = values.needed((root,), per_element=True)
    leaves = [program.leaves[number] for number in needed if number < values.first_scalar]
    if not leaves or values.types[root] != "f32":
        return False
    if not all((leaf.origin, leaf.dtype, leaf.step) == ("source", "bf16", "unit") for leaf in leaves):
        return False
    return not any(number in values.thresholds or number in values.limits for number in needed)


def write_pairs(out: SourceLines, values: Values, first: str, last: str) -> str:
    """Lines that store elements from ``first`` on at ``out0``, if pairs will do. Returns where what is left begins."""
    if not _can_pair(values):
        return first
    root = values.program.sinks[0].args[0]
    needed = values.needed((root,), per_element=True)
    out.add(f"pairs = ({last} - {first}) // 2")
    out.open("for pair in range(pairs):")
    for number in needed:
        if number < values.first_scalar:
            out.add(f"both{number} = load_i32(base{number} + 2 * {first}, pair)")
            out.add(f"even{number} = first_bf16(both{number})", f"odd{number} = second_bf16(both{number})")
        else:
            text = values.step_text(number)
            out.add(*(f"{name}{number} = {_renamed(text, name, needed)}" for name in ("even", "odd")))
    out.add(f"store_i32(out0 + 2 * {first}, pair, pair_of_bf16(even{root}, odd{root}))")
    out.close()
    return f"{first} + 2 * pairs"


def _renamed(text: str, name: str, needed: list[int]) -> str:
    """The text with the values that differ from element to element called by another name."""

    def own(match: re.Match[str]) -> str:
        return f"{name}{match[1]}" if int(match[1]) in needed else match[0]

    return re.sub(r"\bv(\d+)\b", own, text)
