"""Self-tests of fused passes: small expressions on the device and on the CPU, compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.device import MetalDevice
from lbrx.jobs.doctor.self_test import SelfTest, SelfTestResult

if TYPE_CHECKING:
    from lbrx.tensors.tensor import Tensor

Expression = Callable[["Tensor", "Tensor"], "tuple[Tensor, ...]"]
_SHAPE = (37, 1100)
_SINE_BOUND = 4 * 2.0**-23  # four units in the last place of numbers around one, as Metal promises


def self_tests() -> dict[str, SelfTest]:
    """The self-tests by name."""
    tests = {name: _test(expression, bound) for name, (expression, bound) in _expressions().items()}
    return {**tests, "mapped file": _mapped_file}


def _expressions() -> dict[str, tuple[Expression, float]]:
    from lbrx.tensors.creation import normal, uniform

    return {
        "element-wise": (lambda x, y: ((x * 0.25 + y * 0.75).to("bf16"), (x - y) / (abs(y) + 1), x.minimum(y)), 0.0),
        "casts": (lambda x, y: ((x * 100).to("f16"), y.to("f8_e4m3"), (x * 100).to("i8"), (y * 1e6).to("i32")), 0.0),
        "exp, log, acos, sqrt": (lambda x, y: (x.exp(), abs(y).log(), (x / 8).acos(), abs(x).sqrt()), 0.0),
        "sin, cos": (lambda x, y: (x.sin(), y.cos()), _SINE_BOUND),
        "random numbers": (
            lambda x, y: (x + uniform(_SHAPE, 3, "doctor"), y * normal(_SHAPE, 4, "doctor")),
            0.0,
        ),
        "sums": (lambda x, y: (x.sum(), x.dot(y), y.norm(), (x * y).sum()), 0.0),
        "extremes": (lambda x, y: (x.min(), y.max(), (x + y).argmax()), 0.0),
        "strided views": (lambda x, y: (x.T[3:, ::2] * 2, x[5] + y, y.rows([4, 4, 0]) - 1), 0.0),
        "rows": (lambda x, y: (x - x.max(axis=-1, keepdims=True), y.sum(axis=-1), x.argmax(axis=-1)), 0.0),
        "selection": (lambda x, y: (x.kth_largest(1000), (y * y).kth_largest(20_000)), 0.0),
    }


def _test(expression: Expression, bound: float) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        from lbrx.devices.metal.context.current import using_metal
        from lbrx.settings import using
        from lbrx.tensors.creation import evaluate
        from lbrx.tensors.tensor import tensor

        random = np.random.default_rng(1)
        arrays = [random.standard_normal(_SHAPE).astype(np.float32) for _ in range(2)]
        x, y = tensor(arrays[0], "bf16"), tensor(arrays[1], "f32")
        expected = evaluate(*expression(x, y))
        with using_metal(context), using(device=MetalDevice.name):
            got = evaluate(*expression(x, y))
        return SelfTestResult(max(map(_error, got, expected)), bound)

    return run


def _mapped_file(context: MetalContext) -> SelfTestResult:
    """Read a mapped file on the device, and say whether its pages were copied."""
    from lbrx.devices.metal.context.current import using_metal
    from lbrx.devices.metal.context.transfers import transfers
    from lbrx.settings import using
    from lbrx.tensors.creation import evaluate
    from lbrx.tensors.dtype import dtype
    from lbrx.tensors.expr import Source
    from lbrx.tensors.shape import Layout
    from lbrx.tensors.storage import MmapStorage
    from lbrx.tensors.tensor import Tensor

    values = np.random.default_rng(2).standard_normal(_SHAPE).astype(np.float32)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "weights"
        path.write_bytes(values.tobytes())
        weights = Tensor(Source(MmapStorage.from_file(path), dtype("f32"), Layout.contiguous(_SHAPE)))
        counts = transfers(context)
        copied, wrapped = counts.copied_bytes, counts.wrapped_bytes
        with using_metal(context), using(device=MetalDevice.name):
            (got,) = evaluate(weights * 2)
        copied, wrapped = counts.copied_bytes - copied, counts.wrapped_bytes - wrapped
    return SelfTestResult(_error(got, values * 2), 0.0, f"{wrapped} bytes read in place, {copied} copied")


def _error(got: Any, expected: Any) -> float:
    """The largest difference; zero only if all bits are the same."""
    left, right = np.atleast_1d(np.asarray(got)), np.atleast_1d(np.asarray(expected))
    if left.tobytes() == right.tobytes():
        return 0.0
    with np.errstate(all="ignore"):
        difference = float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max())
    return difference or 2.0**-149
