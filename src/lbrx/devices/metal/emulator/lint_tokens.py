"""What Apple's compiler rejects and clang does not: rules that tokens and scopes are enough for."""

from __future__ import annotations

import re
from typing import Literal

from lbrx.devices.metal.emulator.tokens import Problem, TokenText
from lbrx.devices.metal.emulator.translate import Translation
from lbrx.devices.metal.generations import BFLOAT_LANGUAGE, Version

Scope = Literal["namespace", "class", "enum", "function", "kernel", "block"]
_FORBIDDEN_WORDS = {
    "goto": "goto statement is not supported",
    "asm": "inline assembly is not supported",
    "__asm": "inline assembly is not supported",
    "__asm__": "inline assembly is not supported",
    "virtual": "virtual functions are not supported",
    "double": "'double' is not supported in Metal",
    "new": "operator new is not supported",
    "delete": "operator delete is not supported",
    "throw": "exceptions are not supported",
    "try": "exceptions are not supported",
    "dynamic_cast": "dynamic_cast is not supported",
    "typeid": "typeid is not supported",
    "thread_local": "thread_local variables are not supported",
    "std": "there is no namespace 'std'",
}
_STAGES = frozenset(("vertex", "fragment"))  # `kernel` is one that clang knows
_BFLOATS = frozenset(
    ("bfloat", *(f"{packed}bfloat{n}" for packed in ("", "packed_") for n in (2, 3, 4)), "simdgroup_bfloat8x8")
)
_NOT_VARIABLES = frozenset(
    (
        *("using", "typedef", "struct", "class", "union", "enum", "static_assert"),
        *("friend", "template", "public", "private", "namespace", "extern"),
    )
)
_ORDERS = ("memory_order_seq_cst", "memory_order_acquire", "memory_order_release", "memory_order_acq_rel")


def lint_tokens(translation: Translation, language: Version) -> list[Problem]:
    """Problems of a shader in a version of the language, in the order of its text."""
    return _TokenLint(translation, language).problems


class _TokenLint:
    """One walk with a stack of scopes; ``start`` is where the current declaration or statement began."""

    def __init__(self, translation: Translation, language: Version) -> None:
        self.translation = translation
        self.language = language
        self.text: TokenText = translation.text
        self.problems: list[Problem] = []
        self.scopes: list[Scope] = ["namespace"]
        self.start = 0
        self.in_kernel_head = False
        self._walk()

    def _reject(self, index: int, message: str) -> None:
        self.problems.append(Problem(self.text.source_line(index), message))

    def _walk(self) -> None:
        words, attributes = self.text.words, self.translation.attributes
        parentheses = i = 0
        while i < self.text.count:
            word = words[i]
            if i in attributes:
                self.in_kernel_head |= attributes[i].get("kernel") is not None
                i = attributes[i].end
                continue
            parentheses += (word == "(") - (word == ")")
            if parentheses == 0 and word in ("{", "}", ";", "kernel"):
                i = self._structure(i)
            else:
                self._word(i, parentheses)
                i += 1

    def _structure(self, i: int) -> int:
        """Follow scopes and statements; the next token to look at."""
        word = self.text.words[i]
        if word == "kernel":
            self.in_kernel_head = True
            return i + 1
        if word == "{":
            scope = self._opened_scope(i)
            if scope is None:  # the initialiser of a variable
                return self.text.closing(i) + 1
            self.scopes.append(scope)
        elif word == "}" and len(self.scopes) > 1:
            self.scopes.pop()
        elif word == ";":
            self._declaration(i)
        self.start = i + 1
        self.in_kernel_head = False
        return i + 1

    def _opened_scope(self, brace: int) -> Scope | None:
        head = self.text.words[self._after_template_head(self.start) : brace]
        outer = self.scopes[-1]
        if "namespace" in head or (head[:1] == ["extern"] and '"C"' in head):
            return "namespace"
        if "enum" in head[:2]:
            return "enum"
        if not {"struct", "class", "union"}.isdisjoint(head) and "(" not in head and "=" not in head:
            return "class"
        if outer not in ("namespace", "class"):
            return "block"
        if "(" not in head:
            return None
        return "kernel" if self.in_kernel_head and outer == "namespace" else "function"

    def _after_template_head(self, start: int) -> int:
        words = self.text.words
        while words[start] == "template" and words[start + 1] == "<":
            end = self.text.closing_angle(start + 1)
            if end is None:
                break
            start = end + 1
        return start

    def _inside_function(self) -> bool:
        return "function" in self.scopes or "kernel" in self.scopes

    def _declaration(self, semicolon: int) -> None:
        """Variables outside functions must be constant."""
        scope = self.scopes[-1]
        if self._inside_function() or scope not in ("namespace", "class") or self.in_kernel_head:
            return
        declaration = self.text.words[self._after_template_head(self.start) : semicolon]
        if not declaration or declaration[0] in _NOT_VARIABLES:
            return
        before = declaration[: declaration.index("=")] if "=" in declaration else declaration
        names = [word for word in before if re.fullmatch(r"[A-Za-z_]\w*", word)]
        if "(" in before or len(names) < 2 or "constant" in before:
            return
        if scope == "namespace":
            self._reject(self.start, f"program scope variable '{names[-1]}' must reside in constant address space")
        elif "static" in before:
            self._reject(self.start, f"static data member '{names[-1]}' must reside in constant address space")

    def _word(self, i: int, parentheses: int) -> None:
        words = self.text.words
        word = words[i]
        if not self.text.is_name(i):
            return
        if word in _FORBIDDEN_WORDS and self._is_forbidden(i):
            self._reject(i, _FORBIDDEN_WORDS[word])
        elif word in _STAGES:
            if parentheses or self.scopes[-1] != "namespace" or i != self._after_template_head(self.start):
                self._reject(i, f"expected a name, but '{word}' is a keyword")
        elif word in _BFLOATS:
            if self.language < BFLOAT_LANGUAGE:
                self._reject(i, f"unknown type name '{word}' before version 3.1 of the language")
        elif word == "threadgroup" and parentheses == 0 and words[i - 1] in (";", "{", "}"):
            rewritten = self.text.edits.get(i, "").startswith("typedef")
            if rewritten and "function" in self.scopes and "kernel" not in self.scopes:
                self._reject(i, "variables in the threadgroup address space can only be declared in a kernel function")
        elif word == "static" and parentheses == 0 and self._inside_function():
            if {"constexpr", "constant"}.isdisjoint(words[i : i + 6]):
                self._reject(i, "static local variables are not supported outside the constant address space")
        elif word in _ORDERS:
            self._memory_order(i)

    def _is_forbidden(self, i: int) -> bool:
        words = self.text.words
        if words[i] == "std":
            return words[i + 1] == "::"
        if words[i] == "delete":  # `f() = delete;` is fine
            return words[i - 1] != "="
        return words[i - 1] not in (".", "->", "::")

    def _memory_order(self, i: int) -> None:
        """Atomic functions take the relaxed order only; fences take all."""
        depth, k = 0, i
        while k > 0 and not (self.text.words[k] == "(" and depth == 0):
            depth += (self.text.words[k] == ")") - (self.text.words[k] == "(")
            k -= 1
        callee = self.text.words[k - 1]
        if callee.startswith("atomic_") and callee != "atomic_thread_fence":
            self._reject(i, f"{callee}: only memory_order_relaxed is supported")
