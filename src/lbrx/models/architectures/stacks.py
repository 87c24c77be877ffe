"""Structure derived from tensor names alone: numbered stacks of layers, and the tensors before and after them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from lbrx.base.fast_dataclass import dataclass

Part = Literal["pre", "layer", "post"]

_LAYER_WORDS = frozenset({"layers", "layer", "h", "blocks", "block", "blk"})
_NOT_TEXT = re.compile(r"vision|visual|image|audio|speech|clip")
PROJECTORS = ("multi_modal_projector", "connector", "merger", "deepstack_merger_list")
_PROJECTOR = re.compile(rf"((?:.*\.)?(?:{'|'.join(PROJECTORS)}))\.")
_EMBEDDING = re.compile(r"embed(?!_out)|embd|wte|wpe")
_AFTER_LAYERS = re.compile(r"norm|ln_|head|_out$|^out_|output|score|classifier")
_VOCABULARY_MODULES = frozenset(
    {
        "embed_tokens",
        "wte",
        "word_embeddings",
        "embed_in",
        "tok_embeddings",
        "token_embd",
        "lm_head",
        "embed_out",
        "output",
    }
)


@dataclass(frozen=True, slots=True)
class Stack:
    """Tensors numbered 0 to n-1 without gaps, such as the layers of a decoder.

    >>> Stack("model.layers.", layer_count=2, tensor_count=18).container
    'model'
    """

    prefix: str  # the text before the number: "model.layers."
    layer_count: int
    tensor_count: int

    @property
    def container(self) -> str:
        """The module that contains the stack; empty at the top."""
        return self.prefix.rstrip(".").rpartition(".")[0]

    @property
    def is_named_like_layers(self) -> bool:
        return self.prefix.rstrip(".").rpartition(".")[2] in _LAYER_WORDS


def layer_number(name: str, prefix: str) -> int | None:
    """Return the number that follows a prefix in a name, or None.

    >>> layer_number("model.layers.12.mlp.up_proj.weight", "model.layers.")
    12
    >>> layer_number("model.norm.weight", "model.layers.") is None
    True
    """
    if not prefix or not name.startswith(prefix):
        return None
    digits, dot, _ = name[len(prefix) :].partition(".")
    return int(digits) if dot and _is_number(digits) else None


def _is_number(component: str) -> bool:
    # "01" is not a number here: writing it back as 1 would change the name.
    return component.isascii() and component.isdigit() and (component == "0" or component[0] != "0")


def find_stacks(names: Iterable[str]) -> tuple[Stack, ...]:
    """Return the numbered stacks in a set of tensor names, in the order of their prefixes.

    Numbers inside a layer, such as those of experts, are not separate stacks. Numbers with a gap are not a
    stack.

    >>> find_stacks(["h.0.experts.0.w", "h.0.experts.1.w", "h.1.experts.0.w", "h.1.experts.1.w", "ln.weight"])
    (Stack(prefix='h.', layer_count=2, tensor_count=4),)
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    tensor_counts: dict[str, int] = defaultdict(int)
    for name in names:
        if (index := _stack_index(name)) is not None:
            prefix, number = index
            numbers[prefix].add(number)
            tensor_counts[prefix] += 1
    return tuple(
        Stack(prefix, len(numbers[prefix]), tensor_counts[prefix])
        for prefix in sorted(numbers)
        if max(numbers[prefix]) == len(numbers[prefix]) - 1
    )


def _stack_index(name: str) -> tuple[str, int] | None:
    """Return the layer number in a name and the text before it: the first number after a word for layers, or at all."""
    components = name.split(".")
    indices = [index for index, component in enumerate(components[:-1]) if index and _is_number(component)]
    if not indices:
        return None
    index = next((index for index in indices if components[index - 1] in _LAYER_WORDS), indices[0])
    return ".".join(components[:index]) + ".", int(components[index])


def main_stack(stacks: Sequence[Stack]) -> Stack | None:
    """Return the stack of the language model: named like layers, not a vision or audio tower, and the longest.

    >>> main_stack([Stack("vision_tower.layers.", 27, 432), Stack("model.layers.", 18, 162)]).prefix
    'model.layers.'
    """
    return min(
        stacks,
        key=lambda stack: (
            _NOT_TEXT.search(stack.prefix) is not None,
            not stack.is_named_like_layers,
            -stack.layer_count,
            -stack.tensor_count,
            stack.prefix,
        ),
        default=None,
    )


def side_modules(stacks: Iterable[Stack], main_container: str) -> tuple[str, ...]:
    """Return the modules next to the language model that have their own layers, such as ``vision_tower``.

    >>> tower = Stack("model.vision_tower.encoder.layers.", 27, 432)
    >>> side_modules([tower], "model.language_model")
    ('model.vision_tower',)
    """
    ancestors = {"", *_ancestors(main_container)}
    modules = {
        next((path for path in _ancestors(stack.prefix.rstrip(".")) if path not in ancestors), "") for stack in stacks
    }
    return tuple(sorted(modules - {""}))


def projector_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return the modules between a tower and the language model, such as ``multi_modal_projector``.

    >>> projector_modules(["visual.merger.mlp.0.weight", "visual.blocks.0.norm1.weight"])
    ('visual.merger',)
    """
    found = {match[1] for match in map(_PROJECTOR.match, names) if match is not None}
    return tuple(sorted(found))


def _ancestors(path: str) -> list[str]:
    """Return the prefixes of a dotted path, shortest first, including itself."""
    components = path.split(".") if path else []
    return [".".join(components[:length]) for length in range(1, len(components) + 1)]


def module_of(name: str, modules: Iterable[str]) -> str:
    """Return the module of a name; empty for the language model.

    >>> module_of("vision_tower.post_layernorm.weight", ["vision_tower"])
    'vision_tower'
    """
    return next((module for module in modules if name.startswith(module + ".")), "")


def _below_main(name: str, main_container: str) -> list[str]:
    """Return a name's components below the deepest module that it shares with the stack's container."""
    components, container = name.split("."), main_container.split(".") if main_container else []
    shared = 0
    while shared < min(len(components) - 1, len(container)) and components[shared] == container[shared]:
        shared += 1
    return components[shared:]


def part_by_name(name: str, main_container: str) -> Part:
    """Return whether a tensor outside the layers is used before or after them, by the name of its module.

    >>> part_by_name("model.embed_tokens.weight", "model"), part_by_name("model.norm.weight", "model")
    ('pre', 'post')
    """
    module = _below_main(name, main_container)[0]
    is_after = _AFTER_LAYERS.search(module) is not None and _EMBEDDING.search(module) is None
    return "post" if is_after else "pre"


def is_vocabulary_name(name: str, main_container: str) -> bool:
    """Return whether a name is typical for embeddings or language heads, which have one row per token.

    >>> is_vocabulary_name("transformer.wte.weight", "transformer")
    True
    >>> is_vocabulary_name("transformer.wpe.weight", "transformer")
    False
    """
    below = _below_main(name, main_container)
    return len(below) == 2 and below[0] in _VOCABULARY_MODULES and below[1] in ("weight", "bias")
