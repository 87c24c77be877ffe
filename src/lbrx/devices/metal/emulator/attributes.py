"""Attributes of the shading language: ``[[buffer(0)]]``, ``[[thread_position_in_grid]]`` and the rest."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator.tokens import TokenText

# The kernel's argument as an expression over the runner's thread `t` and group `sh`, and its most components.
POSITIONS: dict[str, tuple[str, int]] = {
    "thread_position_in_grid": ("t->pos_grid", 3),
    "thread_position_in_threadgroup": ("t->pos_tg", 3),
    "thread_index_in_threadgroup": ("&t->idx_tg", 1),
    "threadgroup_position_in_grid": ("sh->tg_pos", 3),
    "threads_per_grid": ("sh->threads_per_grid", 3),
    "threads_per_threadgroup": ("sh->threads_per_tg", 3),
    "threadgroups_per_grid": ("sh->tgs_per_grid", 3),
    "dispatch_threads_per_threadgroup": ("sh->disp_threads_per_tg", 3),
    "thread_index_in_simdgroup": ("&t->lane", 1),
    "simdgroup_index_in_threadgroup": ("&t->sg", 1),
    "simdgroups_per_threadgroup": ("&sh->nsg", 1),
    "dispatch_simdgroups_per_threadgroup": ("&sh->nsg", 1),
    "threads_per_simdgroup": ("lanes", 1),
    "thread_execution_width": ("lanes", 1),
    "thread_index_in_quadgroup": ("quad_index", 1),
    "quadgroup_index_in_threadgroup": ("quad", 1),
    "quadgroups_per_threadgroup": ("quads", 1),
    "grid_origin": ("zeros", 3),
    "grid_size": ("sh->threads_per_grid", 3),
}
PARAMETER_ATTRIBUTES = frozenset(
    (
        *POSITIONS,
        *("buffer", "threadgroup", "texture", "sampler", "function_constant", "stage_in", "maybe_unused", "user"),
        *("payload", "id", "raster_order_group", "noalias"),
    )
)
"""Attributes that a parameter of a kernel can have."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A name and, if there are any, the token range of its arguments."""

    name: str
    arguments: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AttributeList:
    """All between ``[[`` and ``]]``; ``end`` is the token behind it."""

    end: int
    attributes: tuple[Attribute, ...]

    def get(self, name: str) -> Attribute | None:
        return next((each for each in self.attributes if each.name == name), None)


def take_attributes(text: TokenText) -> dict[int, AttributeList]:
    """All attribute lists by their first token; they are deleted from the text."""
    lists: dict[int, AttributeList] = {}
    i = 0
    while i < text.count - 1:
        if text.words[i] == "[" and text.words[i + 1] == "[" and text.adjacent(i):
            listed = _attribute_list(text, i)
            text.delete(range(i, listed.end))
            lists[i] = listed
            i = listed.end
        else:
            i += 1
    return lists


def _attribute_list(text: TokenText, start: int) -> AttributeList:
    end = text.closing(start) - 1  # the first of the two closing brackets
    attributes: list[Attribute] = []
    i = start + 2
    while i < end:
        name = text.words[i]
        i += 1
        while i < end and text.words[i] == "::":
            i += 2
        arguments = None
        if i < end and text.words[i] == "(":
            closing = text.closing(i)
            arguments = (i + 1, closing)
            i = closing + 1
        attributes.append(Attribute(name, arguments))
        if i < end and text.words[i] == ",":
            i += 1
    return AttributeList(end + 2, tuple(attributes))
