"""Small rewrites: where Metal's dialect and clang's "C++ for OpenCL" differ in a few tokens.

Each rule looks at one token of a text and edits it or its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lbrx.devices.metal.emulator.tokens import TokenText

_SCALARS = ["bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "bfloat"]
_FIXED_WIDTH = ["size_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t"]
SCALARS = frozenset(_SCALARS + _FIXED_WIDTH)
VECTORS = frozenset(f"{scalar}{count}" for scalar in _SCALARS for count in (2, 3, 4))
_SWIZZLE = re.compile(r"[xyzw]{2,4}|[rgba]{2,4}")
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}
_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="))
_FLOAT_LITERAL = re.compile(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?|0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?\d+")
_BFLOAT_LITERAL = re.compile(r"[\d.]+(?:[eE][+-]?\d+)?(bf|BF)")

Rule = Callable[[TokenText, int], None]


def rewrite_literals(text: TokenText) -> None:
    """Floating literals are float in Metal; clang forgets its option for that inside templates."""
    for i in range(text.count):
        if text.token_types[i] == "number":
            word = text.words[i]
            if _FLOAT_LITERAL.fullmatch(word):
                text.edits[i] = word + "f"
            elif _BFLOAT_LITERAL.fullmatch(word):
                text.edits[i] = f"bfloat({word[:-2]}f)"


def rewrite_swizzles(text: TokenText) -> None:
    """``v.xyz`` becomes a method call, unless the shader itself declares something of that name."""
    candidates = [i for i in range(text.count) if text.is_name(i) and _SWIZZLE.fullmatch(text.words[i])]
    selected = [i for i in candidates if i and text.words[i - 1] in (".", "->")]
    declared = {text.words[i] for i in set(candidates).difference(selected)}
    for i in selected:
        word = text.words[i]
        if word in declared:
            continue
        shifted = text.words[i + 1 : i + 4] == [">", ">", "="]
        method = "__swizzle_ref" if shifted or text.words[i + 1] in _ASSIGNMENTS else "__swizzle"
        components = ", ".join(str(_COMPONENTS[letter]) for letter in word)
        text.edits[i] = f"template {method}<{components}>()"


def function_template_parameter(text: TokenText, i: int) -> None:
    """Function pointers as template parameters become references, which keep the address space."""
    if text.words[i] == "template" and text.words[i + 1] == "<":
        end = text.closing_angle(i + 1)
        for k in range(i + 1, (end or 0) - 3):
            named = text.words[k : k + 2] == ["(", "*"] and text.is_name(k + 2) and text.words[k + 2] != "const"
            if named and text.words[k + 3 : k + 5] == [")", "("]:
                text.edits[k + 1] = "&"
    elif text.words[i] == "using" and text.words[i + 2] == "=":
        k = i + 3
        while k < text.count and text.words[k] not in (";", "{"):
            if text.words[k : k + 4] == ["(", "*", ")", "("]:
                text.edits[k + 1] = "&"
            k += 1


def method_address_space(text: TokenText, i: int, classes: frozenset[str]) -> None:
    """The address space behind a method's parameters: clang needs its own words there."""
    word = text.words[i]
    if word not in ("device", "constant", "thread") or i < 2:
        return
    if text.words[i + 1] not in ("{", ":", ";", "noexcept", "=", "->", "const"):
        return
    if text.words[i - 1] == ")":
        end = i - 1
    elif text.words[i - 1] == "const" and text.words[i - 2] == ")":
        end = i - 2
    else:
        return
    if text.words[_opening_before(text, end) - 1] in classes:  # a constructor: __private ones cannot return values
        text.edits[i] = {"thread": "", "device": "__global", "constant": "__constant"}[word]
    elif word != "thread":
        text.edits[i] = "__global" if word == "device" else "__generic"


def _opening_before(text: TokenText, closing: int) -> int:
    depth = 0
    for i in range(closing, -1, -1):
        depth += (text.words[i] == ")") - (text.words[i] == "(")
        if depth == 0:
            return i
    return 1


def reference_to_temporary(text: TokenText, i: int) -> None:
    """``const thread short& x`` may be bound to a temporary, which clang does not keep in __private: pass by value."""
    if text.words[i] != "&" or not text.is_name(i + 1) or text.words[i + 2] not in (",", ")"):
        return
    if text.words[i - 1] not in SCALARS and text.words[i - 1] not in VECTORS:
        return
    before = text.words[max(i - 3, 0) : i - 1]
    if before in (["const", "thread"], ["thread", "const"]):
        text.delete((i - 3 if before[0] == "thread" else i - 2, i))


def short_vector_initialiser(text: TokenText, i: int) -> None:
    """``uint4 v = {a, b}``: the components that are missing are zero."""
    if text.words[i] not in VECTORS or not text.is_name(i + 1):
        return
    brace = i + 2 + (text.words[i + 2] == "=")
    if text.words[brace] != "{":
        return
    end = text.closing(brace)
    given, wanted = len(text.split(brace + 1, end)), int(text.words[i][-1])
    if 1 < given < wanted and "{" not in text.words[brace + 1 : end]:
        text.append(end - 1, ", 0" * (wanted - given))


def half_cast(text: TokenText, i: int) -> None:
    """clang does not convert between half and bfloat; our conversion goes through float."""
    is_cast = text.words[i : i + 2] == ["static_cast", "<"] and text.words[i + 3] == ">"
    if is_cast and text.words[i + 2] in ("bfloat", "bfloat16_t", "half", "float16_t"):
        text.edits[i] = "metal::__cv"


def coherent_qualifier(text: TokenText, i: int) -> None:
    """``coherent(device)`` says nothing to a machine that runs one thread at a time."""
    if text.words[i : i + 2] == ["coherent", "("]:
        text.delete(range(i, i + 4))


RULES: tuple[Rule, ...] = (
    function_template_parameter,
    reference_to_temporary,
    short_vector_initialiser,
    half_cast,
    coherent_qualifier,
)
