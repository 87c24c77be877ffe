"""Results that are written past the caches are those that are not, wherever they begin and end."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.codegen import streamed_stores
from lbrx.engine.destination import MemoryDestination
from lbrx.engine.evaluate import evaluate_stores
from lbrx.settings import using
from lbrx.tensors.dtype import DType, dtype
from lbrx.tensors.storage import Bytes

DTYPE_NAMES = ["f64", "f32", "f16", "bf16", "f8_e4m3", "i64", "i32", "i16", "i8", "u8", "bool"]
LENGTHS = [1, 255, 256, 2048, 65_536, 65_537, 3 * 65_536 + 2049]


class AnywhereDestination(MemoryDestination):
    """Memory that begins some bytes after the start of a cache line."""

    def __init__(self, dtype_name: DType, elements: int, offset: int) -> None:
        self.dtype = dtype_name
        self.memory = np.full(elements * dtype_name.itemsize + 256, 0xAB, np.uint8)
        self.first = -self.memory.ctypes.data % 64 + 64 + offset
        self.stop = self.first + elements * dtype_name.itemsize

    @property
    def whole(self) -> Bytes:
        return self.memory[self.first : self.stop]

    @property
    def around(self) -> set[int]:
        """The bytes before and after the result."""
        return {*self.memory[: self.first].tolist(), *self.memory[self.stop :].tolist()}


def stored(monkeypatch: pytest.MonkeyPatch, least: int, dtype_name: str, elements: int, offset: int) -> bytes:
    monkeypatch.setattr(streamed_stores, "LEAST_BYTES", least)
    monkeypatch.setattr(streamed_stores, "PAYS", True)
    target = AnywhereDestination(dtype(dtype_name), elements, offset)
    numbers = lbrx.tensor(np.random.default_rng(elements).standard_normal(elements).astype(np.float32)) * 9
    expr = (numbers > 0) if dtype_name == "bool" else numbers.to(dtype_name)
    evaluate_stores([(expr.expr, target)])
    assert target.around == {0xAB}
    return target.whole.tobytes()


@pytest.mark.parametrize("dtype_name", DTYPE_NAMES)
@pytest.mark.parametrize("elements", LENGTHS)
def test_streamed_results_are_the_same_bytes(monkeypatch: pytest.MonkeyPatch, dtype_name: str, elements: int) -> None:
    plain = stored(monkeypatch, 1 << 60, dtype_name, elements, 0)
    for threads in (1, 2, 7):
        with using(threads=threads):
            assert stored(monkeypatch, 0, dtype_name, elements, 0) == plain


@pytest.mark.parametrize("offset", [1, 2, 8, 32, 63])
def test_results_that_begin_within_a_cache_line(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    plain = stored(monkeypatch, 1 << 60, "f32", 100_000, offset)
    assert stored(monkeypatch, 0, "f32", 100_000, offset) == plain


def test_simple_expressions_over_large_arrays_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def pays(nbytes: int) -> bool:
        asked.append(nbytes)
        return True

    monkeypatch.setattr(streamed_stores, "pays", pays)
    values = np.arange(70_001, dtype=np.float32)
    assert ((lbrx.tensor(values) + 1).numpy() == values + 1).all()
    assert asked == [values.nbytes]
