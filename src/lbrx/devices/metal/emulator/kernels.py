"""Kernel functions: their parameters as data, and entry points that the runner can call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator.attributes import PARAMETER_ATTRIBUTES, POSITIONS, Attribute, AttributeList
from lbrx.devices.metal.emulator.tokens import TokenText, integer_constant

ParameterRole = Literal["buffer", "threadgroup", "position", "invalid"]
_SPACES = frozenset(
    ["device", "constant", "threadgroup", "thread", "ray_data", "object_data", "threadgroup_imageblock"]
)
LARGEST_INDEX = 30


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel; ``enabled_by`` is the function constant expression that turns it on."""

    role: ParameterRole
    declaration: str
    index: int = -1
    position: str = ""
    read_only: bool = False
    is_reference: bool = False
    enabled_by: str | None = None


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """A kernel by its host name: the number of its entry point, and its parameters."""

    number: int
    parameters: tuple[Parameter, ...]

    @property
    def symbol(self) -> str:
        return f"__msl_kernel_{self.number}"

    @property
    def sizes_symbol(self) -> str:
        """A function (parameter, 0 or 1) that gives the size or the alignment of what a parameter points at."""
        return f"__msl_sizes_{self.number}"

    @property
    def enabled_symbol(self) -> str:
        """A function (parameter) that tells whether the function constants turn a parameter on."""
        return f"__msl_enabled_{self.number}"


def parse_parameters(
    text: TokenText, attributes: Mapping[int, AttributeList], start: int, end: int, kernel: str
) -> tuple[Parameter, ...]:
    """The parameters between the parentheses of a kernel; what Metal rejects is reported to ``text``."""
    parameters: list[Parameter] = []
    used: set[tuple[str, int]] = set()
    components: set[str] = set()
    for first, last in text.split(start, end):
        listed = [each for k in range(first, last) if k in attributes for each in attributes[k].attributes]
        words = [text.words[k] for k in range(first, last) if not text.deleted(k)]
        if words == ["void"]:
            continue
        parameter = _parameter(text, first, words, {each.name: each for each in listed}, parameters, kernel)
        for each in listed:
            if each.name not in PARAMETER_ATTRIBUTES:
                text.reject(first, f"kernel '{kernel}': unknown attribute '{each.name}'")
        if parameter.role in ("buffer", "threadgroup"):
            what = "buffer" if parameter.role == "buffer" else "threadgroup memory"
            if (parameter.role, parameter.index) in used:
                text.reject(first, f"kernel '{kernel}': {what} index {parameter.index} is used twice")
            if not 0 <= parameter.index <= LARGEST_INDEX:
                text.reject(first, f"kernel '{kernel}': {what} index {parameter.index} is not in 0..30")
            used.add((parameter.role, parameter.index))
        parameters.append(parameter)
        components |= _components(parameter)
    if len(components) > 1:
        text.reject(start, f"kernel '{kernel}': positions and sizes of the grid have different numbers of components")
    return tuple(parameters)


def _components(parameter: Parameter) -> set[str]:
    """The number of components of a position in the grid, as in the name of its type: 2, 3, or none."""
    if POSITIONS.get(parameter.position, ("", 1))[1] == 1:
        return set()
    return {match.group(1) for match in [re.search(r"\b(?:uint|ushort)([23]?)\b", parameter.declaration)] if match}


def _parameter(
    text: TokenText,
    first: int,
    words: list[str],
    attributes: Mapping[str, Attribute],
    earlier: list[Parameter],
    kernel: str,
) -> Parameter:
    declaration = " ".join(words)
    space = next((word for word in words if word in _SPACES), None)
    pointer = not {"*", "&", "["}.isdisjoint(words)
    if pointer and space in ("device", "constant", "threadgroup"):
        role: ParameterRole = "threadgroup" if space == "threadgroup" else "buffer"
        condition = attributes.get("function_constant")
        return Parameter(
            role,
            declaration,
            _index(text, first, attributes.get(role), _next_index(earlier, role), kernel),
            read_only="const" in words or space == "constant",
            is_reference="&" in words,
            enabled_by=text.raw(*condition.arguments) if condition and condition.arguments else None,
        )
    position = next((name for name in attributes if name in POSITIONS), None)
    if not pointer and position is not None:
        return Parameter("position", declaration, position=position)
    if pointer:
        text.reject(
            first,
            f"kernel '{kernel}': pointer/reference parameter '{declaration}' must be in the device, constant or "
            "threadgroup address space",
        )
    else:
        text.reject(first, f"kernel '{kernel}': invalid or missing attribute on parameter '{declaration}'")
    return Parameter("invalid", declaration)


def _index(text: TokenText, first: int, attribute: Attribute | None, following: int, kernel: str) -> int:
    if attribute is None or attribute.arguments is None:
        return following
    argument = text.raw(*attribute.arguments)
    try:
        return integer_constant(argument)
    except ValueError:
        text.reject(first, f"kernel '{kernel}': {attribute.name}({argument}) is not an integer constant")
        return following


def _next_index(earlier: list[Parameter], role: ParameterRole) -> int:
    taken = {parameter.index for parameter in earlier if parameter.role == role}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def entry_point(function: str, entry: KernelEntry) -> str:
    """C++ text: a function over the runner's thread that calls the kernel, and two that tell of its parameters."""
    arguments: list[str] = []
    sizes: list[str] = []
    conditions: list[str] = []
    for i, parameter in enumerate(entry.parameters):
        type_name = f"metal::__arg<{i}, F>::type"
        if parameter.enabled_by is not None:
            conditions.append(f"case {i}: return ({parameter.enabled_by}) ? 1 : 0;")
        if parameter.role == "buffer":
            arguments.append(f"metal::__bind<{type_name}>::get(sh->bufs[{parameter.index}])")
            sizes.append(f"case {i}: return w ? metal::__psz<{type_name}>::a : metal::__psz<{type_name}>::s;")
        elif parameter.role == "threadgroup":
            arguments.append(f"metal::__bind<{type_name}>::get(sh->tgm[{parameter.index}])")
        else:
            expression, components = POSITIONS[parameter.position]
            arguments.append(f"metal::__attr_get<{type_name}, {components}>({expression})")
    return (
        f'\nextern "C" void {entry.symbol}(__generic __msl_thread *t) {{ typedef decltype({function}) F; '
        "auto sh = t->sh; uint lanes[1] = {32}, zeros[3] = {0, 0, 0}, quad_index[1] = {t->lane & 3}, "
        "quad[1] = {t->idx_tg >> 2}, quads[1] = {(sh->nthreads + 3) / 4}; "
        "(void)lanes; (void)zeros; (void)quad_index; (void)quad; (void)quads; (void)sh; "
        f"{function}({', '.join(arguments)}); }}"
        f'\nextern "C" ulong {entry.sizes_symbol}(int i, int w) {{ typedef decltype({function}) F; '
        f"switch (i) {{ {' '.join(sizes)} }} return 0; }}"
        f'\nextern "C" int {entry.enabled_symbol}(int i) {{ switch (i) {{ {" ".join(conditions)} }} return 1; }}\n'
    )
