"""Which tensors of a model the rules of its family name, checked: nothing missing, nothing left over, shapes right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.models.architectures.dimensions import Dimensions
from lbrx.models.architectures.gguf_families import Family, Rule

_LISTED_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class RuleUse:
    """One use of a rule: its name in GGUF and the names, one for each expert of a stack, that it has in the other."""

    rule: Rule
    gguf_name: str
    hf_names: tuple[str, ...]


def rule_uses(family: Family, sizes: Dimensions) -> Iterator[RuleUse]:
    """Every tensor that a model of the family can have, in the order in which files have them."""
    outer = [rule for rule in family.rules if not rule.is_per_layer]
    layered = [rule for rule in family.rules if rule.is_per_layer]
    yield from (_rule_use(rule, None, sizes) for rule in outer[:1])
    for layer in range(sizes.layers):
        yield from (_rule_use(rule, layer, sizes) for rule in layered)
    yield from (_rule_use(rule, None, sizes) for rule in outer[1:])


def _rule_use(rule: Rule, layer: int | None, sizes: Dimensions) -> RuleUse:
    experts = range(sizes.experts) if rule.is_stack else (0,)
    hf_names = tuple(rule.hf.format(layer=layer, expert=expert) for expert in experts)
    return RuleUse(rule, rule.gguf.format(layer=layer), hf_names)


@dataclass(frozen=True, eq=False)
class Match:
    """A use of a rule, and the model's tensors for it: as many as it has names in the model's format."""

    use: RuleUse
    tensors: tuple[PlannedTensor, ...]


def match_tensors(
    wanted: Iterator[RuleUse],
    tensors: Mapping[str, PlannedTensor],
    *,
    names_of: Callable[[RuleUse], Sequence[str]],
    shape_of: Callable[[Rule], tuple[int, ...]],
    where: str,
) -> list[Match]:
    """Give every use of a rule its tensors; one error names all that are missing, left over or of another shape."""
    matches: list[Match] = []
    problems: list[str] = []
    unused = dict.fromkeys(tensors)
    for use in wanted:
        names = names_of(use)
        held = [tensors[name] for name in names if name in tensors]
        if use.rule.is_required or held:
            problems += [f"tensor {name!r} is missing" for name in names if name not in tensors]
        expected = shape_of(use.rule)
        for tensor in held:
            unused.pop(tensor.name, None)
            if _without_ones(tensor.shape) != _without_ones(expected):
                problems.append(f"tensor {tensor.name!r} has shape {tensor.shape}, expected {expected}")
        if len(held) == len(names):
            matches.append(Match(use, tuple(held)))
    problems += [f"tensor {name!r} has no place in the other format" for name in unused]
    if problems:
        listed = "; ".join(problems[:_LISTED_PROBLEMS])
        more = f"; and {len(problems) - _LISTED_PROBLEMS} more" if len(problems) > _LISTED_PROBLEMS else ""
        raise UsageError(f"{where}: the model cannot be converted: {listed}{more}")
    return matches


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that count: some files have a gate as a vector, others as a matrix of one row."""
    return tuple(size for size in shape if size != 1)
