"""``python -m mutants.barriers``: delete each barrier of our shaders and generated passes, one at a time.

Kernels with a barrier less run in the emulator with the race detector, forward and in reverse. A mutant is detected if
a fault is found or a result differs. At least nine of ten must be; survivors are printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import lbrx
from lbrx.devices.metal.codegen.source import PassKernel, pass_kernel
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.driver.errors import KernelFault
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings, Order
from lbrx.devices.metal.ops.arrays import DeviceArray, download, upload
from lbrx.devices.metal.ops.attention import attention
from lbrx.devices.metal.ops.linear import linear
from lbrx.devices.metal.ops.matmul import matmul
from lbrx.devices.metal.ops.rows import layer_norm, rms_norm, softmax
from lbrx.devices.metal.ops.sources import shader_source
from lbrx.engine.attention_options import AttentionOptions

LEAST_SHARE = 0.9
BARRIER = re.compile(r"\b(?:threadgroup|simdgroup)_barrier\([^;]*\);")
ORDERS: tuple[Order, ...] = ("forward", "reverse")
_RANDOM = np.random.default_rng(5)


def _numbers(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


Q, KEYS, VALUES = _numbers(2, 20, 64), _numbers(1, 40, 64), _numbers(1, 40, 40)
LEFT, RIGHT, LONG = _numbers(40, 40), _numbers(40, 40), _numbers(8, 2100)
LINES, SHORT, WHOLE = _numbers(3, 700), _numbers(3, 5000), _numbers(3, 40_000)
SHADERS: dict[str, Callable[[MetalContext], list[DeviceArray]]] = {
    "rows": lambda metal: [
        softmax(metal, upload(metal, LINES)),
        rms_norm(metal, upload(metal, LINES), upload(metal, LINES[0])),
        layer_norm(metal, upload(metal, LINES), upload(metal, LINES[0]), upload(metal, LINES[1])),
    ],
    "attention": lambda metal: [
        attention(metal, *(upload(metal, each) for each in (Q, KEYS, VALUES)), kernel="long", variant="2x8"),
    ],
    "attention_vector": lambda metal: [
        attention(
            metal,
            *(upload(metal, each) for each in (Q[:, :2], KEYS, VALUES)),
            AttentionOptions(causal=False),
            kernel="vector",
            variant="2",
        ),
    ],
    "matmul": lambda metal: [
        matmul(metal, upload(metal, LEFT), upload(metal, RIGHT), variant=variant) for variant in ("32x32", "64x64")
    ],
    "matvec": lambda metal: [linear(metal, upload(metal, LONG[:2]), upload(metal, LONG), variant="split4")],
}
PASSES: dict[str, Callable[[], tuple[lbrx.Tensor, ...]]] = {
    "sums": lambda: ((lbrx.tensor(WHOLE) * 2).sum(), lbrx.tensor(WHOLE).argmax()),
    "sums of a view": lambda: (lbrx.tensor(WHOLE)[:, 1:].sum(),),
    "rows": lambda: (_softmax(lbrx.tensor(WHOLE)),),
    "row sums": lambda: (lbrx.tensor(SHORT).sum(axis=-1),),
    "sums of rows": lambda: (_softmax(lbrx.tensor(WHOLE)).sum(),),
}

EQUIVALENT = {
    ("row sums", 1): "a threadgroup has one row and one batch of tiles: nothing is written to the tiles again",
    ("row sums", 2): "only the thread that writes the sum of the row uses it",
}
"""Barriers that a pass does not need, but others with the same lines do: why nothing can be detected."""


def _softmax(values: lbrx.Tensor) -> lbrx.Tensor:
    powers = (values - values.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class BarrierMutant:
    """A shader or pass without one of its barriers, which is the ``number``-th in its text."""

    kernel: str
    number: int
    line: str
    is_pass: bool = False


def shader_mutants() -> list[BarrierMutant]:
    """One for each barrier in the shaders."""
    return [BarrierMutant(name, *found) for name in SHADERS for found in _barriers(shader_source(name))]


def pass_mutants() -> list[BarrierMutant]:
    """One for each barrier in generated passes of `PASSES`."""
    mutants: list[BarrierMutant] = []
    for name, make in PASSES.items():
        kernels: list[PassKernel] = []
        with _generated(kernels.append), _device("forward"):
            lbrx.evaluate(*make())
        for position, text in enumerate(dict.fromkeys(kernel.text for kernel in kernels)):
            mutants += [
                BarrierMutant(name, 1000 * position + number, line, is_pass=True) for number, line in _barriers(text)
            ]
    return mutants


def _barriers(text: str) -> Iterator[tuple[int, str]]:
    for number, match in enumerate(BARRIER.finditer(text)):
        before = text[: match.start()].rstrip().rpartition("\n")[2].strip()
        yield number, f"after '{before}'"


def _without(text: str, number: int) -> str:
    match = list(BARRIER.finditer(text))[number]
    return text[: match.start()] + text[match.end() :]


@contextmanager
def _device(order: Order) -> Iterator[MetalContext]:
    context = MetalContext(EmulatedDriver(EmulatorSettings(order=order, find_races=True, timeout_seconds=60)))
    with using_metal(context), lbrx.using(device="metal"):
        yield context


@contextmanager
def _generated(seen: Callable[[PassKernel], object]) -> Iterator[None]:
    """Passes go through a function, which may return another kernel."""

    def changed(program: Any) -> PassKernel:
        kernel = pass_kernel(program)
        other = seen(kernel)
        return other if isinstance(other, PassKernel) else kernel

    with patch("lbrx.devices.metal.run.pass_kernel", changed):
        yield


def results(mutant: BarrierMutant, order: Order, *, changed: bool) -> list[Any]:
    """What the kernels of a mutant compute, with the barrier or without it."""
    if mutant.is_pass:
        texts: list[str] = []

        def delete(kernel: PassKernel) -> PassKernel:
            if kernel.text not in texts:
                texts.append(kernel.text)
            if not changed or texts.index(kernel.text) != mutant.number // 1000:
                return kernel
            return kernel._replace(
                source=kernel.source.replace(kernel.text, _without(kernel.text, mutant.number % 1000))
            )

        with _generated(delete), _device(order):
            return [np.asarray(each) for each in lbrx.evaluate(*PASSES[mutant.kernel]())]

    def source(name: str) -> str:
        text = shader_source(name)
        return _without(text, mutant.number) if changed and name == mutant.kernel else text

    with patch("lbrx.devices.metal.ops.launching.shader_source", source), _device(order) as context:
        return [download(context, each) for each in SHADERS[mutant.kernel](context)]


def is_detected(mutant: BarrierMutant) -> bool:
    """Whether the race detector or a result shows that a barrier is missing."""
    for order in ORDERS:
        try:
            found = results(mutant, order, changed=True)
        except KernelFault:
            return True
        expected = results(mutant, order, changed=False)
        if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(found, expected, strict=True)):
            return True
    return False


def main() -> int:
    mutants = [*shader_mutants(), *pass_mutants()]
    survivors: list[BarrierMutant] = []
    for mutant in mutants:
        detected = is_detected(mutant)
        survivors += [] if detected else [mutant]
        reason = EQUIVALENT.get((mutant.kernel, mutant.number), "unexplained")
        result = "detected" if detected else f"SURVIVED ({reason})"
        print(f"{result}  {mutant.kernel} {mutant.number}: {mutant.line}", flush=True)
    share = 1 - len(survivors) / len(mutants)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} deleted barriers detected ({share:.0%})")
    return 0 if share >= LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
