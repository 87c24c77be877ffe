"""How two models differ, tensor by tensor: each pair of tensors is read once, in one fused pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.output.options import CountCallback
from lbrx.ops.difference import Sums, compare
from lbrx.tensors.shape import Shape
from lbrx.tensors.tensor import Tensor

if TYPE_CHECKING:
    from lbrx.jobs.compare.ranks import ChangeRank


class ModulePosition(NamedTuple):
    """Where a tensor is in a model: its stack of layers and the number in it, or none, and its module."""

    stack: str
    layer: int | None
    module: str


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One tensor that both models have."""

    name: str
    shape: Shape
    position: ModulePosition
    sums: Sums


@dataclass(frozen=True, slots=True)
class ShapeMismatch:
    """A tensor that has different shapes in the two models."""

    name: str
    shape_a: Shape
    shape_b: Shape


@dataclass(frozen=True, slots=True)
class ModelDiff:
    """The tensors that were compared, and all that could not be."""

    tensors: tuple[TensorDiff, ...]
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    shape_mismatches: tuple[ShapeMismatch, ...] = ()
    without_base: tuple[str, ...] = ()  # compared, but without the base's tensor
    ranks: tuple[ChangeRank, ...] = ()  # of changes of a few matrices

    @property
    def total(self) -> Sums:
        return sum((tensor.sums for tensor in self.tensors), Sums())

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the change of each layer, and of the tensors outside of layers."""
        from lbrx.tensors.display import table_html

        named = [(f"{stack} {layer}".strip(), sums) for (stack, layer), sums in self.layers().items()]
        named += [(tensor.name, tensor.sums) for tensor in self.outside_layers()]
        rows = [(name, f"{sums.relative_change:.4g}", f"{sums.cosine:.6f}") for name, sums in named]
        caption = f"{len(self.tensors):,} tensors, relative change {self.total.relative_change:.4g}"
        return table_html(caption, ("layer or tensor", "relative change", "cosine"), rows)

    def layers(self) -> dict[tuple[str, int], Sums]:
        """The sums of each layer, by its stack and number, in order."""
        sums_by_layer: dict[tuple[str, int], Sums] = {}
        for tensor in self.tensors:
            stack, layer, _ = tensor.position
            if layer is not None:
                sums_by_layer[stack, layer] = sums_by_layer.get((stack, layer), Sums()) + tensor.sums
        return dict(sorted(sums_by_layer.items()))

    def outside_layers(self) -> list[TensorDiff]:
        """The tensors that belong to no layer."""
        return [tensor for tensor in self.tensors if tensor.position.layer is None]

    def modules(self) -> dict[tuple[str, int], dict[str, Sums]]:
        """The sums of each kind of module in each layer; experts of one layer are one kind."""
        sums_by_module: dict[tuple[str, int], dict[str, Sums]] = {key: {} for key in self.layers()}
        for tensor in self.tensors:
            stack, layer, module = tensor.position
            if layer is not None:
                row = sums_by_module[stack, layer]
                row[module] = row.get(module, Sums()) + tensor.sums
        return sums_by_module

    def module_names(self) -> list[str]:
        """The kinds of modules in layers, in the order in which a network runs them."""
        names = dict.fromkeys(module for row in self.modules().values() for module in row)
        return sorted(names, key=network_order)


_ORDER = (  # parts of names, as models of Hugging Face, GGUF and GPT-2 have them; the first match counts
    ("input_layernorm", "attn_norm", "ln_1"),
    ("q_norm", "k_norm"),
    ("q_proj", "attn_q", "c_attn", "qkv", "query_key_value"),
    ("k_proj", "attn_k"),
    ("v_proj", "attn_v"),
    ("o_proj", "attn_output", "attn.c_proj", "attention.dense"),
    ("post_attention_layernorm", "pre_feedforward", "ffn_norm", "ln_2"),
    ("mlp.gate.", "router", "gate_inp"),
    ("gate_proj", "ffn_gate"),
    ("up_proj", "ffn_up", "c_fc", "dense_h_to_4h"),
    ("down_proj", "ffn_down", "mlp.c_proj", "dense_4h_to_h"),
)


def network_order(module: str) -> int:
    """Where a module of a layer comes in the network; modules without a known name are last.

    >>> sorted(["mlp.down_proj", "self_attn.k_proj", "self_attn.q_proj", "input_layernorm"], key=network_order)
    ['input_layernorm', 'self_attn.q_proj', 'self_attn.k_proj', 'mlp.down_proj']
    """
    named = f"{module}."
    return next((place for place, parts in enumerate(_ORDER) if any(part in named for part in parts)), len(_ORDER))


Measure = Callable[[str, Tensor, Tensor, Tensor | None], Sums]


def diff_models(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    base: Mapping[str, Tensor] | None = None,
    *,
    pattern: str | None = None,
    progress: CountCallback | None = None,
    measure: Measure | None = None,
) -> ModelDiff:
    """Compare all tensors of two models that have the same names, or those whose names match a pattern.

    A pattern with ``*``, ``?`` or ``[`` is matched with the whole name, other text anywhere in it. ``progress`` is
    called with tensors done, tensors in all, and a name; ``measure`` can stand for ``compare`` where more is wanted.

    >>> import lbrx
    >>> one, two = ({"w": lbrx.tensor(values, "f32")} for values in ([3.0, 4.0], [3.0, -4.0]))
    >>> sums = diff_models(one, two).tensors[0].sums
    >>> sums.relative_change, sums.cosine, sums.sign_agreement, sums.max_difference
    (1.6, -0.28, 0.5, 8.0)
    """
    chosen_a, chosen_b = ([name for name in model if _matches(name, pattern)] for model in (a, b))
    common = [name for name in chosen_a if name in b]
    if not common:
        raise UsageError(_nothing_in_common(chosen_a, chosen_b, pattern))
    mismatches = tuple(
        ShapeMismatch(name, a[name].shape, b[name].shape) for name in common if a[name].shape != b[name].shape
    )
    odd = {mismatch.name for mismatch in mismatches}
    compared = [name for name in common if name not in odd]
    without_base = [
        name for name in compared if base is not None and (name not in base or base[name].shape != a[name].shape)
    ]
    lacking = set(without_base)
    positions = positions_of([*a, *(name for name in b if name not in a)])
    diffs = []
    for number, name in enumerate(compared):
        origin = None if base is None or name in lacking else base[name]
        pair = a[name], b[name]
        sums = compare(*pair, origin) if measure is None else measure(name, *pair, origin)
        diffs.append(TensorDiff(name, pair[0].shape, positions[name], sums))
        if progress is not None:
            progress(number + 1, len(compared), name)
    return ModelDiff(
        tuple(diffs),
        tuple(name for name in chosen_a if name not in b),
        tuple(name for name in chosen_b if name not in a),
        mismatches,
        tuple(without_base),
    )


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    return fnmatchcase(name, pattern) if any(mark in pattern for mark in "*?[") else pattern in name


def _nothing_in_common(a: Sequence[str], b: Sequence[str], pattern: str | None) -> str:
    which = "" if pattern is None else f" that matches {pattern!r}"
    examples = f": {a[0]!r} is in the first, {b[0]!r} in the second" if a and b else ""
    return f"the models have no tensor{which} in common{examples}"


def positions_of(names: Iterable[str]) -> dict[str, ModulePosition]:
    """Where every tensor of a model is, derived from all names together.

    >>> positions = positions_of(["embed.weight", "model.layers.0.mlp.experts.3.up.weight", "model.layers.0.norm.bias"])
    >>> positions["model.layers.0.mlp.experts.3.up.weight"]
    ModulePosition(stack='model.layers', layer=0, module='mlp.experts.*.up')
    >>> positions["embed.weight"], positions["model.layers.0.norm.bias"].module
    (ModulePosition(stack='', layer=None, module='embed'), 'norm.bias')
    """
    from lbrx.models.architectures.stacks import find_stacks, layer_number

    listed = list(names)
    prefixes = [stack.prefix for stack in find_stacks(listed)]
    positions = {}
    for name in listed:
        numbers = ((prefix, layer_number(name, prefix)) for prefix in prefixes)
        prefix, layer = next((number for number in numbers if number[1] is not None), ("", None))
        rest = name if layer is None else name[len(f"{prefix}{layer}.") :]
        positions[name] = ModulePosition(prefix.rstrip("."), layer, _module(rest))
    return positions


def _module(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    return ".".join("*" if part.isdigit() else part for part in parts)


def short_labels(modules: Sequence[str]) -> list[str]:
    """The ends of dotted names, as short as they can be without two becoming equal.

    >>> short_labels(["self_attn.q_proj", "mlp.up_proj", "shared.up_proj"])
    ['q_proj', 'mlp.up_proj', 'shared.up_proj']
    """
    labels = []
    for module in modules:
        parts = module.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        others = [other for other in modules if other != module]
        is_free = (end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others))
        labels.append(next(is_free, module))
    return labels
