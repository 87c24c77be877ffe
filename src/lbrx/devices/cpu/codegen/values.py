"""The values of a program: when and where in a kernel each is known, and the text that computes it."""

from __future__ import annotations

from lbrx.devices.cpu.codegen.rank_tests import rank_tests
from lbrx.devices.cpu.codegen.registers import cast_text, literal_cast, operation_text, register_type
from lbrx.engine.block_sizes import RANK_RESULT_RUN
from lbrx.engine.program import FLAT, RANK_OPS, ROW_OPS, ROWS, Program, Sink

_STREAMS = ("uniform", "normal")
_FLOATS = ("f32", "f64")
_HALVES = frozenset({"f16", "bf16", "f8_e4m3", "f8_e5m2"})


class Values:
    """Values by number: leaves, scalars, then instructions; element ``column`` of a row is value ``v<number>``.

    ``phase``: in which walk over the row a value is first known. ``per_element``: whether it differs along the row.
    ``tests``: comparisons with ranks that are decided together with the ranks, by number. ``limits``: comparisons of
    the element's index with a scalar, by number: leaf and scalar. ``thresholds``: masks of the largest, see there.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.types = [register_type(name) for name in program.value_types()]
        self.first_scalar = len(program.leaves)
        self.first_body = self.first_scalar + len(program.scalars)
        self.ranks = [n for n, i in enumerate(program.body, self.first_body) if i.op in RANK_OPS]
        self.phase, self.per_element = self._phases()
        self.tests = rank_tests(program, self.types, self.phase)
        self.limits = {
            number: (instruction.args[0], instruction.args[1])
            for number, instruction in enumerate(program.body, self.first_body)
            if instruction.op == "le" and self._is_limit(*instruction.args)
        }

        self.thresholds = {
            number: threshold
            for number, instruction in enumerate(program.body, self.first_body)
            if instruction.op == "or" and (threshold := self._threshold(*instruction.args)) is not None
        }

    def _phases(self) -> tuple[list[int], list[bool]]:
        phase: list[int] = []
        per_element: list[bool] = []
        for leaf in self.program.leaves:
            phase.append(0)
            per_element.append(leaf.step != "zero")
        for _ in self.program.scalars:
            phase.append(0)
            per_element.append(False)
        for instruction in self.program.body:
            latest = max((phase[arg] for arg in instruction.args), default=0)
            along_row = instruction.op in ROW_OPS or instruction.op in RANK_OPS
            phase.append(latest + 1 if along_row else latest)
            per_element.append(
                instruction.op not in ROW_OPS
                and (instruction.op in RANK_OPS or any(per_element[arg] for arg in instruction.args))
            )
        return phase, per_element

    def _is_limit(self, left: int, right: int) -> bool:
        """Whether a comparison is that of the element's index with a scalar: it changes once along a row."""
        if left >= self.first_scalar or not self.first_scalar <= right < self.first_body:
            return False
        leaf = self.program.leaves[left]
        return leaf.origin == "index" and leaf.step == "unit" and not leaf.gather and self.types[right] == "i64"

    def _operation(self, number: int, op: str) -> tuple[int, ...]:
        """The arguments of a value that is the result of an operation, else nothing."""
        if number < self.first_body or self.program.body[number - self.first_body].op != op:
            return ()
        return self.program.body[number - self.first_body].args

    def _threshold(self, left: int, right: int) -> tuple[int, int, int] | None:
        """The parts of ``key > k or (key == k and index <= i)``: key, k and the comparison of the index.

        That is ``key > k - 1`` up to the index i, then ``key > k``. Keys of float32 leave room below the smallest.
        """
        above, both = self._operation(left, "gt"), self._operation(right, "and")
        if not above or not both or both[1] not in self.limits or self._operation(both[0], "eq") != above:
            return None
        arg = self._operation(above[0], "order_key")
        is_scalar = self.first_scalar <= above[1] < self.first_body
        return (above[0], above[1], both[1]) if is_scalar and arg and self.types[arg[0]] == "f32" else None

    def needed(self, roots: tuple[int, ...], per_element: bool, known: frozenset[int] = frozenset()) -> list[int]:
        """The values (element-wise ones or the others) that roots are made from, in order; known ones as they are."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number in wanted or self.per_element[number] != per_element:
                continue
            wanted.add(number)
            if number in self.thresholds and number not in known:
                stack.append(self.thresholds[number][0])
                continue
            ends_here = number in known or number in self.tests or number in self.limits or number in self.ranks
            if number >= self.first_body and not ends_here:
                stack += self.program.body[number - self.first_body].args
        return sorted(wanted)

    def walks(self) -> list[tuple[int, ...]]:
        """What each walk over a row is for: values that reductions or ranks along it need, at last those of sinks."""
        if self.program.mode != ROWS:
            return []
        walks: dict[int, tuple[int, ...]] = {}
        for number, instruction in enumerate(self.program.body, self.first_body):
            if instruction.op in ROW_OPS or instruction.op in RANK_OPS:
                walks[self.phase[number]] = (*walks.get(self.phase[number], ()), *instruction.args)
        last = tuple(arg for sink in self.program.sinks if sink.op != "row_store" for arg in sink.args)
        return [*walks.values(), last]

    # -- text -----------------------------------------------------------------------------------------------------

    def text(self, number: int, column: str, in_part: bool = False) -> str:
        """The value of an element; ``in_part``: inside a part of ``ElementLoops``."""
        if number < self.first_scalar:
            return self._leaf_text(number, column, in_part)
        if number in self.tests:
            return self.tests[number].result_text(self.rank_buffer(self.tests[number].rank), column)
        if number in self.thresholds:
            return f"(v{self.thresholds[number][0]} > threshold{number})"
        if number in self.ranks:
            return f"peek_i64({self.rank_buffer(number)} + {8 * RANK_RESULT_RUN} * columns, {column})"
        return self.step_text(number)

    def step_text(self, number: int) -> str:
        """The text of an instruction over values that are there."""
        instruction = self.program.body[number - self.first_body]
        args = [f"v{arg}" for arg in instruction.args]
        if instruction.op == "cast" and self.types[instruction.args[0]] == "bool" and instruction.type in _FLOATS:
            one, zero = (literal_cast(number, instruction.type) for number in ("1", "0"))
            return f"({one} if {args[0]} else {zero})"  # keeps a lane's width, where a conversion would go by bytes
        if instruction.op == "cast":
            return cast_text(args[0], self.types[instruction.args[0]], instruction.type)
        arg_types = [self.types[arg] for arg in instruction.args]
        return operation_text(instruction.op, self.types[number], args, arg_types)

    def _leaf_text(self, number: int, column: str, in_part: bool) -> str:
        leaf = self.program.leaves[number]
        if in_part and self.is_stream(number):
            index = f"high{number} | np.int64(np.uint32(np.uint32(j) + low{number}))"
        else:
            walk = {"unit": column, "zero": "0", "any": f"{column} * stride{number}"}[leaf.step]
            index = f"{self.start_text(number)} + {walk}"
        if leaf.origin == "index":
            return f"np.int64({index})"
        if leaf.origin in _STREAMS:
            return f"{leaf.origin}_f32(key0_{number}, key1_{number}, {index})"
        return f"load_{leaf.dtype}(base{number}, {index})"

    def start_text(self, number: int) -> str:
        """The index of a leaf's first element in the row."""
        leaf = self.program.leaves[number]
        parts = [f"offset{number}"] if leaf.origin != "source" or leaf.dtype in ("i4", "i2") else []
        parts += [f"row_offset{number}"] if self.program.mode != FLAT else []
        return " + ".join(parts) or "0"

    def is_stream(self, number: int) -> bool:
        """Whether a leaf is a random number that differs from element to element."""
        leaf = self.program.leaves[number]
        return leaf.origin in _STREAMS and leaf.step == "unit"

    def rank_buffer(self, rank: int) -> str:
        """The address of the buffer in which a rank is found."""
        number = self.ranks.index(rank)
        return f"(rank_buffer + {number} * rank_bytes)" if number else "rank_buffer"


def rounded_once(program: Program, sink: Sink) -> Sink:
    """A store that rounds takes what was not rounded to the same type before: it comes to the same."""
    first_body = len(program.leaves) + len(program.scalars)
    number = sink.args[0] - first_body
    if sink.op != "store" or number < 0 or sink.type not in _HALVES:
        return sink
    instruction = program.body[number]
    if instruction.op != "cast" or instruction.type != sink.type:
        return sink
    source = program.value_types()[instruction.args[0]]
    return sink._replace(args=instruction.args) if register_type(source) == "f32" else sink
