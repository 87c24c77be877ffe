"""Recording operations: what NumPy code does to values without numbers, compared with running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lbrx import ops
from lbrx.engine.device import device
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import PYTHON, CannotRecord, Recorder, run_in_step

X = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
ROW = np.arange(8, dtype=np.float32)


def _in_place(x: Any) -> Any:
    part = x[:, 2:5]
    part += np.float32(1.0)
    x *= np.float32(2.0)
    x[1] = x[0]
    return x + part.sum(axis=1, keepdims=True)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x + x,
    "sum with a row": lambda x: ROW + x,
    "product": lambda x: x * x * ROW,
    "scaled": lambda x: 3.0 * x * np.float32(0.1),
    "f64": lambda x: x * np.float64(0.1),
    "transposed": lambda x: x.T.reshape(4, 6) + 1,
    "heads": lambda x: ops.softmax(x.reshape(3, 2, 4).transpose(1, 0, 2)),
    "columns": lambda x: ops.silu(x[:, 3:7]),
    "last rows": lambda x: ops.rms_norm(x[-2:], ROW, 1e-5, add_one=True),
    "layer norm": lambda x: ops.layer_norm(x, ROW, ROW + 1),
    "gated": lambda x: ops.gelu_mul(x[:, :4], x[:, 4:]),
    "capped": lambda x: ops.softcap(x, 0.5),
    "rotated": lambda x: ops.rotate(x, np.cos(X[:, :3]), np.sin(X[:, :3]), "interleaved"),
    "numpy functions": lambda x: np.concatenate([np.exp(x), np.where(x > 0, x, -x)], axis=1),
    "chosen": lambda x: np.take_along_axis(x, np.argsort(-x, axis=1, kind="stable")[:, :2], axis=1),
    "rows by number": lambda x: x[[2, 0]] - x[1],
    "cast": lambda x: x.astype(np.float16).astype(np.float32),
    "depends on values": lambda x: run_in_step(lambda a: a if a[0, 0] > 0 else -a, x),
    "in place": _in_place,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_recorded_operations_have_the_results_of_numpy(name: str) -> None:
    function = FUNCTIONS[name]
    recorder = Recorder(3)
    result = function(recorder.input(X.shape))
    step = device("cpu").compile_step(recorder.finish(result))
    assert step is not None
    for factor in (1, -7, 0.3):
        given = X * np.float32(factor)
        expected = function(given.copy())
        step.inputs[0][...] = given
        actual = step.run(KeyValueCache([]))
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["sum", "product", "scaled", "heads", "columns", "gated", "rotated", "layer norm"])
def test_operations_of_a_device_need_no_python(name: str) -> None:
    recorder = Recorder(3)
    recording = recorder.finish(FUNCTIONS[name](recorder.input(X.shape)))
    assert PYTHON not in {operation.name for operation in recording.operations}


@pytest.mark.parametrize(
    "function",
    [lambda x: 1 if x else 0, lambda x: float(x[0, 0]), lambda x: np.asarray(x), lambda x: x if x[0, 0] > 0 else -x],
)
def test_code_that_needs_numbers_cannot_be_recorded(function: Callable[[Any], Any]) -> None:
    with pytest.raises(CannotRecord):
        function(Recorder(3).input(X.shape))


def test_a_function_of_python_is_called_in_every_run_in_its_order() -> None:
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x[0, 0]))
        return x + 1

    recorder = Recorder(3)
    value = recorder.input(X.shape)
    for _ in range(3):
        value = run_in_step(note, value * np.float32(2.0))
    step = device("cpu").compile_step(recorder.finish(value))
    assert step is not None
    seen.clear()  # it was called with zeros, for the shape of its result
    step.inputs[0][...] = 1
    assert step.run(KeyValueCache([]))[0, 0] == 15
    assert seen == [2, 6, 14]
