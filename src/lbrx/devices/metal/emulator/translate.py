"""From preprocessed Metal text to the text that clang compiles, with all kernels and constants as data."""

from __future__ import annotations

from collections.abc import Collection, Set

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator import dialect
from lbrx.devices.metal.emulator.attributes import AttributeList, take_attributes
from lbrx.devices.metal.emulator.conditionals import rewrite_conditionals
from lbrx.devices.metal.emulator.declarations import (
    FunctionConstant,
    take_function_constant,
    take_threadgroup_variables,
)
from lbrx.devices.metal.emulator.kernels import KernelEntry, Parameter, entry_point, parse_parameters
from lbrx.devices.metal.emulator.messages import glue_file
from lbrx.devices.metal.emulator.tokens import SourceLine, TokenText, join_words


@dataclass(frozen=True, slots=True)
class Translation:
    """A shader for clang. ``only`` kernels have entry points; ``names`` lists every kernel there is."""

    text: TokenText
    attributes: dict[int, AttributeList]
    kernels: dict[str, KernelEntry]
    names: tuple[str, ...]
    functions: frozenset[str]
    constants: dict[str, FunctionConstant]
    variables: tuple[str, ...]


def translate(
    preprocessed: str, only: Collection[str] | None = None, retry_lines: Set[SourceLine] = frozenset()
) -> Translation:
    """Rewrite a shader; ``retry_lines`` are explained in ``conditionals``.

    >>> shader = translate("kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2.0; }")
    >>> shader.names, shader.text.problems
    (('twice',), [])
    """
    return _Translator(preprocessed, only, retry_lines).result()


class _Translator:
    """One walk over the tokens; ``start`` is where the current declaration or statement began."""

    def __init__(self, preprocessed: str, only: Collection[str] | None, retry_lines: Set[SourceLine]) -> None:
        self.text = TokenText(preprocessed)
        self.only = only
        self.attributes = take_attributes(self.text)
        self.parameters: dict[str, tuple[Parameter, ...]] = {}
        self.kernels: dict[str, KernelEntry] = {}
        self.names: list[str] = []
        self.constants: dict[str, FunctionConstant] = {}
        self.variables: list[str] = []
        self.braces = 0
        words = self.text.words
        self.classes = frozenset(
            words[i + 1] for i in range(self.text.count) if words[i] in ("struct", "class") and self.text.is_name(i + 1)
        )
        dialect.rewrite_literals(self.text)
        dialect.rewrite_swizzles(self.text)
        rewrite_conditionals(self.text, retry_lines)
        self._walk()

    def result(self) -> Translation:
        return Translation(
            self.text,
            self.attributes,
            self.kernels,
            tuple(self.names),
            frozenset(self.parameters),
            self.constants,
            tuple(self.variables),
        )

    def _walk(self) -> None:
        words = self.text.words
        start = parentheses = i = 0
        while i < self.text.count:
            word = words[i]
            if i in self.attributes:
                after = self._attribute_list(start, i, parentheses)
                start = after if after is not None else start
                i = after if after is not None else self.attributes[i].end
                continue
            parentheses += (word == "(") - (word == ")")
            if word == "kernel" and parentheses == 0 and (i == 0 or words[i - 1] not in (".", "->", "::")):
                self.text.edits[i] = ""
                after = self._kernel(start, i + 1)
                if after is not None:
                    i = start = after
                    continue
            self._rules(i)
            if word == "threadgroup" and self.braces > 0 and words[i - 1] in (";", "{", "}", ":"):
                take_threadgroup_variables(self.text, i, self.variables)
            if word in (";", "{", "}") and parentheses == 0:
                start = i + 1
            self.braces += (word == "{") - (word == "}")
            i += 1

    def _rules(self, i: int) -> None:
        for rule in dialect.RULES:
            rule(self.text, i)
        dialect.method_address_space(self.text, i, self.classes)
        words = self.text.words
        if words[i] == "is_function_constant_defined" and words[i + 1] == "(" and words[i + 2] in self.constants:
            self.text.edits[i] = "metal::__function_constant_defined"
            self.text.edits[i + 2] = str(self.constants[words[i + 2]].index)

    def _attribute_list(self, start: int, i: int, parentheses: int) -> int | None:
        """Handle attributes outside parameter lists; the token to go on with if a declaration was consumed."""
        listed = self.attributes[i]
        constant = listed.get("function_constant")
        if parentheses == 0 and constant is not None and listed.get("buffer") is None:
            taken = take_function_constant(self.text, start, i, listed.end, constant)
            if taken is not None:
                name, record = taken
                first = next((other for other, each in self.constants.items() if each.index == record.index), name)
                if first != name:
                    self.text.reject(i, f"function constants '{first}' and '{name}' have the same index {record.index}")
                self.constants[name] = record
        elif parentheses == 0 and listed.get("kernel") is not None:
            return self._kernel(start, listed.end)
        return None

    def _kernel(self, start: int, after_keyword: int) -> int | None:
        """A kernel's definition, declaration or explicit instantiation; where to go on if it was consumed."""
        text, words = self.text, self.text.words
        if words[start] == "template" and words[start + 1] != "<":
            return self._instantiation(start)
        opening = after_keyword
        while words[opening] != "(":
            if opening in self.attributes:
                opening = self.attributes[opening].end
                continue
            if words[opening] in (";", "{", ""):
                return None
            opening += 1
        name = words[opening - 1]
        kept = [words[k] for k in range(after_keyword, opening - 1) if not text.deleted(k)]
        if [word for word in kept if word not in ("static", "inline", "kernel")] != ["void"]:
            text.reject(opening - 1, f"kernel function '{name}' must return void")
        closing = text.closing(opening)
        parameters = parse_parameters(text, self.attributes, opening + 1, closing, name)
        body = closing + 1
        while body in self.attributes:
            body = self.attributes[body].end
        if words[body] != "{":
            return None
        self.parameters[name] = parameters
        if words[start] != "template":
            self._add_entry(name, name, self._qualified(name), text.closing(body))
        return None

    def _instantiation(self, start: int) -> int:
        """``template [[host_name("f")]] kernel void f<float>(...);`` or with a decltype as the type."""
        text = self.text
        end = text.statement_end(start) or start
        host = self._host_name(start, end)
        kept = [k for k in range(start + 1, end) if not text.deleted(k) and text.words[k] != "kernel"]
        words = [text.edits.get(k, text.words[k]) for k in kept]
        text.delete(range(start, end + 1))
        last = len(words) - 1
        has_parameters = words[last] == ")"
        if has_parameters:
            last = _matching_backwards(words, last, "()") - 1
        if host is None or words[last] != ">":
            return end + 1
        opening = _matching_backwards(words, last, "<>")
        first = opening - 1
        while first > 0 and words[first - 1] == "::":
            first -= 2
        name = words[opening - 1]
        if name not in self.parameters:
            text.reject(start, f"explicit instantiation of unknown kernel template '{name}'")
            return end + 1
        called = self._qualified(join_words(words[first:opening]))
        function = f"{called}<{join_words(words[opening + 1 : last])}>"
        check = ""
        if not has_parameters:
            declared = join_words(words[:first])
            check = (
                f'static_assert(__is_same(decltype({function}), {declared}), "explicit instantiation type mismatch");'
            )
        self._add_entry(host, name, function, end, check)
        return end + 1

    def _qualified(self, function: str) -> str:
        """A kernel at global scope may have a name of the library, such as ``rotate``; ``::`` tells them apart."""
        return function if self.braces or function.startswith("::") else f"::{function}"

    def _host_name(self, start: int, end: int) -> str | None:
        for k in range(start, end):
            listed = self.attributes.get(k)
            named = listed.get("host_name") if listed else None
            if named is not None and named.arguments is not None:
                return "".join(self.text.words[z][1:-1] for z in range(*named.arguments))
        return None

    def _add_entry(self, host: str, name: str, function: str, end: int, check: str = "") -> None:
        if host in self.names:
            self.text.reject(end, f"two kernels have the name '{host}'")
        self.names.append(host)
        parameters = self.parameters[name]
        invalid = any(parameter.role == "invalid" for parameter in parameters)
        if invalid or (self.only is not None and host not in self.only):
            return
        entry = KernelEntry(len(self.kernels), parameters)
        self.kernels[host] = entry
        file, line = self.text.source_line(end)
        glue = check + entry_point(function, entry)
        self.text.append(end, f'\n# 1 "{glue_file(file, line, host)}"\n{glue}\n# {line} "{file}"\n')


def _matching_backwards(words: list[str], closing: int, pair: str) -> int:
    """The index of the word that opens what ``closing`` closes; other brackets in between are skipped."""
    depth = nested = 0
    for i in range(closing, -1, -1):
        if words[i] == pair[1] and nested == 0:
            depth += 1
        elif words[i] == pair[0] and nested == 0:
            depth -= 1
            if depth == 0:
                return i
        elif words[i] in ")]}":
            nested += 1
        elif words[i] in "([{":
            nested -= 1
    return 0
