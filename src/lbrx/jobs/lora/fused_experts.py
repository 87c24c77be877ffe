"""Adapters of experts that are one parameter: divided into a product for each expert.

PEFT stores the factors of all experts in two matrices, A [rank * experts, inputs] and B [outputs, rank * experts]. If
two parameters of a module are adapted, the factors of the first are those of an inner ``base_layer``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from lbrx.errors import FormatError, ShapeError
from lbrx.jobs.lora.parts import AdapterParts
from lbrx.tensors.tensor import Tensor

_ORDER = ("gate_up_proj", "down_proj")  # of the parameters of a module
_INNER = "base_layer"
_SPLIT = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_MIXTRAL_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_TRANSPOSED = ("gpt_oss", "llama4", "llama4_text")  # model types whose stacks are [experts, inputs, outputs]


def divide_experts(parts: AdapterParts, base: Mapping[str, Tensor], model_type: str | None) -> AdapterParts:
    """Replace the factors of whole parameters by those of the tensors that the base has.

    That is one stack, or a matrix for each expert. Stacked factors have three axes: [experts, rank, inputs] and
    [experts, outputs, rank], or transposed as the stack is.
    """
    modules = {module: factors for module, factors in parts.of_modules.items() if _is_stack(parts, module)}
    if not modules and not parts.config.target_parameters:
        return parts
    owners = {_owner(module) for module in modules}
    for target in parts.config.target_parameters:
        owner = target.rpartition(".")[0]
        if not owner or not any(each == owner or each.endswith(f".{owner}") for each in owners):
            raise FormatError(f"{parts.path}: has no factors for {target!r}, which target_parameters names")
    plain = {module: factors for module, factors in parts.of_modules.items() if module not in modules}
    made = replace(parts, of_modules=plain, file_names=dict(parts.file_names), own=dict(parts.own))
    for module, factors in modules.items():
        owner, parameter = _parameter_of(parts, module, modules)
        key = f"{owner}.{parameter}"
        for name, divided in _divided(parts, owner, parameter, factors, base, model_type):
            made.of_modules[name] = divided
            made.own[name] = parts.rank_of(key), parts.scale_of(key)
            made.file_names[name + ".weight"] = parts.file_names[module + ".weight"]
    return made


def _is_stack(parts: AdapterParts, module: str) -> bool:
    """Whether factors are those of a parameter: the targets name it, as a part of this module."""
    owner = _owner(module)
    owners = {target.rpartition(".")[0] for target in parts.config.target_parameters}
    return any(owner == each or owner.endswith(f".{each}") for each in owners)


def _owner(module: str) -> str:
    names = module.split(".")
    while names and names[-1] == _INNER:
        names.pop()
    return ".".join(names)


def _parameter_of(parts: AdapterParts, module: str, modules: Collection[str]) -> tuple[str, str]:
    """The module that has the parameter, and the parameter's name: the outer factors belong to the last one."""
    owner = _owner(module)
    targets = {
        target.rpartition(".")[2]
        for target in parts.config.target_parameters
        if owner == target.rpartition(".")[0] or owner.endswith("." + target.rpartition(".")[0])
    }
    wrapped = sorted((each for each in modules if _owner(each) == owner), key=len, reverse=True)
    if not targets <= set(_ORDER) or len(wrapped) != len(targets):
        raise FormatError(
            f"{parts.path}: the factors of {owner!r} cannot be assigned to its parameters "
            f"{', '.join(sorted(targets))}; expected {' and '.join(_ORDER)}"
        )
    return owner, [name for name in _ORDER if name in targets][wrapped.index(module)]


def _divided(
    parts: AdapterParts,
    owner: str,
    parameter: str,
    factors: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    model_type: str | None,
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    if factors.keys() != {"A", "B"}:
        raise FormatError(f"{parts.path}: {owner!r} has factors {', '.join(factors)}; expected lora_A and lora_B")
    a, b, rank = factors["A"], factors["B"], parts.rank_of(f"{owner}.{parameter}")
    stack = base.get(f"{owner}.{parameter}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] % rank or b.shape[1] != a.shape[0]:
        raise ShapeError(
            f"{parts.path}: the factors of {owner!r} have shapes {a.shape} and {b.shape}, the rank is {rank}"
        )
    experts = a.shape[0] // rank
    by_expert_a = a.reshape(experts, rank, a.shape[1])
    by_expert_b = b.reshape(b.shape[0], rank, experts).permute(2, 0, 1)
    if stack is not None:
        yield f"{owner}.{parameter}", _as_stack(parts, stack, by_expert_a, by_expert_b, owner, model_type)
        return
    names = _SPLIT[parameter]
    rows = b.shape[0] // len(names)
    for expert in range(experts):
        for number, name in enumerate(names):
            module = _expert_module(owner, expert, name, base)
            yield module, {"A": by_expert_a[expert], "B": by_expert_b[expert][number * rows : (number + 1) * rows]}


def _expert_module(owner: str, expert: int, name: str, base: Mapping[str, Tensor]) -> str:
    """The module of an expert in the base, in the names of most families or in those of Mixtral."""
    usual, short = f"{owner}.{expert}.{name}", f"{owner}.{expert}.{_MIXTRAL_NAMES[name]}"
    candidates = (usual, short, short.replace(".mlp.", ".block_sparse_moe."))
    return next((module for module in candidates if f"{module}.weight" in base), usual)


def _as_stack(
    parts: AdapterParts, stack: Tensor, a: Tensor, b: Tensor, owner: str, model_type: str | None
) -> dict[str, Tensor]:
    plain, transposed = (a.shape[0], b.shape[1], a.shape[2]), (a.shape[0], a.shape[2], b.shape[1])
    if stack.shape not in (plain, transposed):
        raise ShapeError(
            f"{parts.path}: the factors of {owner!r} make a stack of shape {plain}, but the model has {stack.shape}"
        )
    is_transposed = stack.shape != plain or (plain == transposed and model_type in _TRANSPOSED)
    return {"A": b.permute(0, 2, 1), "B": a.permute(0, 2, 1)} if is_transposed else {"A": a, "B": b}
