"""Every element-wise operation has a scalar function and code for every device."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.build.library import LIBRARY
from lbrx.devices.cpu.codegen import registers
from lbrx.devices.metal import codegen
from lbrx.devices.metal.codegen import elements as metal
from lbrx.devices.metal.codegen.prelude import FILES
from lbrx.devices.numpy.operations import OPERATIONS
from lbrx.engine.bind import Known
from lbrx.engine.scalars import scalar_value
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import MAP_OPS, Expr, Map, Scalar, apply
from lbrx.tensors.tensor import Tensor

OPS = sorted(MAP_OPS)
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
TWO = COMPARISONS | {"add", "sub", "mul", "div", "pow", "floordiv", "mod", "minimum", "maximum", "and", "or", "xor"}
ON_INTEGERS = frozenset({"and", "or", "xor", "not"})
VALUES = (0.75, -0.375, 0.0, -0.0)
PRELUDE = "".join((Path(str(codegen.__file__)).parent / name).read_text() for name in FILES)
METAL_NAMES = {*metal.REGISTER_TYPES.values(), "uint", "ulong", "precise::sin", "precise::cos"}
METAL_NAMES |= {"rint", "as_type<float>", "as_type<uint>"}


def arity(op: str) -> int:
    return 3 if op == "where" else 2 if op in TWO else 1


def applied(op: str, args: list[Expr]) -> Expr:
    return Map("cast", (args[0],), DTYPES["i8"]) if op == "cast" else apply(op, *args)


def scalar_arguments(op: str, first: float, second: float) -> list[Expr]:
    numbers: tuple[float, ...] = (int(8 * first), int(8 * second)) if op in ON_INTEGERS else (first, second)
    values: list[Expr] = [Scalar(number, DTYPES["i32" if op in ON_INTEGERS else "f32"]) for number in numbers]
    return [Scalar(first > second), *values] if op == "where" else values[: arity(op)]


def register_names(op: str, floats: tuple[str, ...]) -> tuple[str, ...]:
    return ("i64", "i32", "bool") if op in ON_INTEGERS else floats


def called_functions(text: str) -> set[str]:
    return set(re.findall(r"([A-Za-z_][\w.:]*(?:<\w+>)?)\(", text)) - {"not", "if", "else"}


@pytest.mark.parametrize("op", OPS)
def test_a_value_without_axes_is_what_the_cpu_computes(op: str) -> None:
    for first in VALUES if op in ON_INTEGERS else (*VALUES, math.nan):
        for second in VALUES:
            args = scalar_arguments(op, first, second)
            alone = np.asarray(scalar_value(applied(op, args), Known()))
            elements = [lbrx.tensor(np.full(3, arg.value)).to(arg.dtype) for arg in args if isinstance(arg, Scalar)]
            result = Tensor(applied(op, [tensor.expr for tensor in elements])).numpy()
            np.testing.assert_allclose(result, np.full(3, alone), rtol=2e-7, err_msg=f"{op} of {first} and {second}")


@pytest.mark.parametrize("op", OPS)
def test_the_cpu_has_code(op: str) -> None:
    args = ["v0", "v1", "v2"][: arity(op)]
    if op == "cast":
        texts = [registers.cast_text("v0", "f32", target) for target in DTYPES]
    else:
        used = register_names(op, ("f32", "f64"))
        texts = [registers.operation_text(op, register, args, [register] * len(args)) for register in used]
    for text in texts:
        assert "v0" in text
        missing = {name for name in called_functions(text) if name not in LIBRARY and not name.startswith("np.")}
        assert missing <= {"abs", "min", "max"}


@pytest.mark.parametrize("op", sorted(MAP_OPS - metal.LEFT_TO_THE_CPU))
def test_metal_has_code(op: str) -> None:
    args = ["v0", "v1", "v2"][: arity(op)]
    if op == "cast":
        texts = [metal.cast_text("v0", "f32", target) for target in metal.MEMORY_TYPES]
    else:
        texts = [metal.operation_text(op, register, args, register) for register in register_names(op, ("f32",))]
    for text in texts:
        assert "v0" in text
        for name in called_functions(text) - METAL_NAMES:
            assert re.search(rf"\b{name}\(", PRELUDE), f"the prelude has no {name}"


def test_numpy_has_a_function_for_every_operation() -> None:
    assert {*OPERATIONS, "cast"} == MAP_OPS
