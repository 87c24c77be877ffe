"""What Apple's compiler rejects and clang does not: rules that need types, on clang's dump of the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.emulator.messages import is_glue, readable
from lbrx.devices.metal.emulator.tokens import Problem, SourceLine

_NODE = re.compile(r"^[|` -]*([A-Za-z]+)(?: 0x[0-9a-f]+)?(?: prev 0x[0-9a-f]+)?(?: parent 0x[0-9a-f]+)? ?")
_LOCATION = re.compile(r"(line):(\d+):\d+|col:\d+|([^\s<>,:][^<>,:]*):(\d+):\d+")
_QUOTED = re.compile(r"'([^']*)'")
_GENERIC_POINTER = re.compile(r"__generic [A-Za-z_][^()]*[*&]")
_FUNCTION_POINTER = re.compile(r"\((__generic )?\*[^)]*\)\(")
_CONSTANT_SCALAR = re.compile(
    r"const __global (?:unsigned )?(?:u?(?:char|short|int|long)|bool|float|half|bfloat|__bf16)"
)
_LIBRARY_CLASS = re.compile(
    r"__generic (metal::|vec<|matrix<|packed_vec<|array<|uniform<|atomic<|simdgroup_matrix<|float|half|int|uint|os_log)"
)
_METHODS = frozenset(("CXXConstructorDecl", "CXXMethodDecl", "CXXDestructorDecl", "CXXConversionDecl"))
_CASTS = frozenset(("CStyleCastExpr", "CXXReinterpretCastExpr", "CXXStaticCastExpr", "CXXFunctionalCastExpr"))
_BFLOATS = frozenset(("__bf16", "bfloat", "bfloat16_t"))


@dataclass(frozen=True, slots=True)
class _Node:
    depth: int
    type: str
    rest: str

    @property
    def type_name(self) -> str:
        match = _QUOTED.search(self.rest)
        return match.group(1) if match else ""

    @property
    def head(self) -> str:
        return self.rest.partition("'")[0]


def lint_syntax(lines: Iterable[str], kernels: Set[str]) -> list[Problem]:
    """Problems in a dump of the tree; ``kernels`` are the functions that nothing may call."""
    return list(_SyntaxLint(kernels).check(lines))


class _SyntaxLint:
    """Walks the lines of a dump, keeping the file and line that clang mentions only when they change."""

    def __init__(self, kernels: Set[str]) -> None:
        self.kernels = kernels
        self.position = SourceLine("", 0)
        self.problems: dict[Problem, None] = {}
        self.recent: list[_Node] = []  # the last three nodes
        self.skipped_depth: int | None = None

    def check(self, lines: Iterable[str]) -> Iterable[Problem]:
        for line in lines:
            match = _NODE.match(line)
            if match is None:
                continue
            node = _Node(match.start(1), match.group(1), line[match.end() :])
            if self.skipped_depth is not None and node.depth > self.skipped_depth:
                continue
            self.skipped_depth = None
            self._follow_location(node)
            if not self._is_shader(node):
                self.recent.clear()
            elif node.type in _METHODS and " implicit " in node.head:
                self.skipped_depth = node.depth
            else:
                self.recent = [*self.recent[-2:], node]
                self._conversion()
                self._node(node)
        return self.problems

    def _follow_location(self, node: _Node) -> None:
        if "<" not in node.head or "invalid sloc" in node.head:
            return
        for match in _LOCATION.finditer(node.head):
            if match.group(1):
                self.position = SourceLine(self.position.file, int(match.group(2)))
            elif match.group(3):
                self.position = SourceLine(match.group(3), int(match.group(4)))

    def _is_shader(self, node: _Node) -> bool:
        file = self.position.file
        generated = not file or is_glue(file) or file.endswith(".clcpp") or "/emulator/stdlib/" in file
        return not (generated or " __msl_" in node.head or "invalid sloc" in node.head)

    def _reject(self, message: str) -> None:
        self.problems[Problem(self.position, readable(message))] = None

    def _node(self, node: _Node) -> None:
        type_name = node.type_name
        if node.type in ("ParmVarDecl", "VarDecl", "FieldDecl"):
            self._variable(node, type_name)
        elif node.type in _CASTS:
            if re.search(r"__generic [^()]*\*", type_name):
                self._reject(f"pointer type must have explicit address space qualifier (cast to {type_name})")
        elif node.type == "GCCAsmStmt":
            self._reject("inline assembly is not supported")
        elif node.type == "DeclRefExpr":
            self._reference(node)

    def _variable(self, node: _Node, type_name: str) -> None:
        deduced = "(lambda" in type_name or "auto" in type_name or " implicit " in node.head
        if _GENERIC_POINTER.search(type_name) and not deduced:
            self._reject(f"pointer/reference type must have explicit address space qualifier ({type_name})")
        if node.type != "FieldDecl" and _FUNCTION_POINTER.search(type_name):
            self._reject("function pointer variables are not supported")

    def _reference(self, node: _Node) -> None:
        match = re.search(r" Function 0x[0-9a-f]+ '(\w+)'", node.rest)
        if match is None or match.group(1) not in self.kernels or len(self.recent) < 3:
            return
        called, decayed, _ = self.recent
        if called.type == "CallExpr" and "FunctionToPointerDecay" in decayed.rest:
            self._reject(f"kernel function '{match.group(1)}' cannot be called")

    def _conversion(self) -> None:
        """An implicit cast is judged when its operand, the node below it, is known."""
        if len(self.recent) < 2:
            return
        cast, operand = self.recent[-2:]
        if cast.type != "ImplicitCastExpr" or operand.depth <= cast.depth:
            return
        target, source = cast.type_name, operand.type_name
        if "<AddressSpaceConversion>" in cast.rest:
            self._address_space(target, source, self._is_method_call())
        elif "<FloatingCast>" in cast.rest and "part_of_explicit_cast" not in cast.rest:
            bare = source.replace("__private ", "")
            if target.replace("__private ", "") in _BFLOATS and bare in ("float", "half", "_Float16"):
                self._reject(f"'{source}' cannot be implicitly converted to 'bfloat'")

    def _is_method_call(self) -> bool:
        if len(self.recent) < 3:
            return False
        member, cast, _ = self.recent
        return member.type == "MemberExpr" and "bound member function" in member.rest and member.depth < cast.depth

    def _address_space(self, target: str, source: str, is_method: bool) -> None:
        to_constant = "__global " in target and "__global_device" not in target and "__generic" not in target
        loses_device = to_constant and "__global_device" in source
        if loses_device and ("*" in target or (not is_method and _CONSTANT_SCALAR.fullmatch(target))):
            self._reject(
                f"implicit conversion of a device pointer to the constant address space ('{source}' to '{target}')"
            )
        foreign = re.search(r"__(global|global_device|local) ", source)
        if is_method and "__generic " in target and foreign and not _LIBRARY_CLASS.search(target):
            self._reject(
                f"'this' object is in another address space ('{source}'), but the method has no matching address "
                "space qualifier"
            )
