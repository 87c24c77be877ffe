"""Small mistakes made in a source on purpose: each mutation is a replacement of a piece of its text."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_LEAVING = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_NOT_SWAPPED = ("isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast")  # fails
_SYMMETRIC = ("min", "max", "minimum", "maximum", "gcd", "lcm", "array_equal", "samefile", "weighted_sum")
_Change = tuple[str, ast.stmt | ast.expr, str]  # operator, node, and the new text of the node
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    """Replace the characters from ``start`` to ``end`` by ``text``. The statement is in lines ``first`` to ``last``."""

    operator: str
    function: str
    start: int
    end: int
    text: str
    first: int
    last: int

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> tuple[str, str]:
        """The changed lines before and after, without indentation."""
        begin = source.rfind("\n", 0, self.start) + 1
        end = (source + "\n").find("\n", self.end)
        before, after = source[begin:end], source[begin : self.start] + self.text + source[self.end : end]
        return _stripped(before), _stripped(after)


def mutations(source: str) -> list[Mutation]:
    """All mutations of the bodies of functions.

    >>> [mutation.apply("def f(a):\\n    return a < 1\\n") for mutation in mutations("def f(a):\\n    return a < 1\\n")]
    ['def f(a):\\n    return (a <= 1)\\n', 'def f(a):\\n    return a < 2\\n', 'def f(a):\\n    return None\\n']
    """
    offsets = _offsets(source)
    mutations = []
    for name, function in _functions(ast.parse(source), ""):
        for statement in _own_statements(function.body):
            first, last = _header_lines(statement)
            for operator, node, text in _of_statement(statement):
                start = offsets(node.lineno, node.col_offset)
                end = offsets(node.end_lineno or node.lineno, node.end_col_offset or 0)
                if source[start:end] != text:
                    mutations.append(Mutation(operator, name, start, end, text, first, last))
    return mutations


def _stripped(lines: str) -> str:
    return "\n".join(line.strip() for line in lines.splitlines())


def _offsets(source: str) -> Callable[[int, int], int]:
    """A function from a line and a column of the parser, which counts bytes, to the index of a character."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return offset


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        name = f"{prefix}.{child.name}" if isinstance(child, _Function | ast.ClassDef) else prefix
        if isinstance(child, _Function):
            yield name.lstrip("."), child
        yield from _functions(child, name)


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function, without docstrings and without those of functions inside it."""
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assert):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _own_statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []) + getattr(statement, "cases", []):
            yield from _own_statements(handler.body)


def _header_lines(statement: ast.stmt) -> tuple[int, int]:
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last)


def statement_start(source: str, line: int) -> int:
    """The first line of the innermost statement that has this line.

    >>> statement_start("if (a\\n    or b):\\n    c = 1\\n", 2)
    1
    """
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return max(
        (each.lineno for each in statements if each.lineno <= line <= (each.end_lineno or each.lineno)), default=line
    )


def _of_statement(statement: ast.stmt) -> Iterator[_Change]:
    """Operator, node and its new text: of the statement itself and of the expressions that belong to it."""
    if isinstance(statement, ast.If) and not statement.orelse and isinstance(statement.body[-1], _LEAVING):
        yield "dropped guard", statement.test, "False"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield "dropped call", statement, "pass"
    if isinstance(statement, ast.AugAssign) and type(statement.op) in _ARITHMETIC:
        changed = ast.AugAssign(statement.target, _ARITHMETIC[type(statement.op)](), statement.value)
        yield "arithmetic", statement, ast.unparse(changed)
    for expression in _own_expressions(statement):
        yield from _of_expression(expression)
    if isinstance(statement, ast.Return) and statement.value is not None and ast.unparse(statement.value) != "None":
        yield "return None", statement, "return None"


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    skipped = ("annotation", "returns")
    for field, value in ast.iter_fields(statement):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr) and field not in skipped:
                yield from _expressions(child)
            elif isinstance(child, ast.withitem):
                yield from _expressions(child.context_expr)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """An expression and those inside it. Left out: f-strings, whose positions are unreliable, and errors."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and _is_without_effect(node, child)):
            yield from _expressions(child)


def _is_without_effect(call: ast.Call, child: ast.AST) -> bool:
    """Any negative number infers a dimension in `reshape`. `strict` is an assertion in `zip`."""
    name = ast.unparse(call.func).rpartition(".")[2]
    is_inferred = name == "reshape" and ast.unparse(child) == "-1"
    return is_inferred or (name == "zip" and isinstance(child, ast.keyword))


def _of_expression(node: ast.expr) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[number] = _COMPARISONS[type(operator)]()
            yield "comparison", node, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BinOp):
        yield from _arithmetic(node)
    elif isinstance(node, ast.BoolOp):
        changed_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", node, f"({ast.unparse(ast.BoolOp(changed_op, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Call):
        yield from _swapped(node)
    elif isinstance(node, ast.Slice):
        yield from _slice_ends(node)


def _arithmetic(node: ast.BinOp) -> Iterator[_Change]:
    is_text = any(isinstance(side, ast.JoinedStr | ast.List) or _is_text(side) for side in (node.left, node.right))
    if type(node.op) in _ARITHMETIC and not is_text:
        changed = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        yield "arithmetic", node, f"({ast.unparse(changed)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _constant(node: ast.Constant) -> Iterator[_Change]:
    if isinstance(node.value, bool):
        yield "True/False", node, str(not node.value)
    elif isinstance(node.value, int | float):
        yield "constant", node, repr(node.value + 1)


def _swapped(node: ast.Call) -> Iterator[_Change]:
    if len(node.args) < 2 or any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
        return
    if ast.unparse(node.func).rpartition(".")[2] in (*_NOT_SWAPPED, *_SYMMETRIC):
        return
    changed = copy.deepcopy(node)
    changed.args[:2] = [changed.args[1], changed.args[0]]
    yield "swapped arguments", node, ast.unparse(changed)


def _slice_ends(node: ast.Slice) -> Iterator[_Change]:
    for end in (node.lower, node.upper):
        if end is not None and not isinstance(end, ast.Constant):
            yield "slice end", end, f"({ast.unparse(end)}) + 1"
