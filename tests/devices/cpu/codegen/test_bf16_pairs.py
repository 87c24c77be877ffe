"""bf16 in pairs: all of its values, odd lengths and odd places give what single elements of f32 give."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.build import kernel_cache
from lbrx.devices.cpu.codegen.pass_source import kernel_source
from lbrx.engine.program import Program

ALL = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
OTHER = np.random.default_rng(0).permutation(ALL)
WIDE = lbrx.tensor(ALL.astype(np.float32))
EXPRESSIONS: dict[str, Callable[[lbrx.Tensor, lbrx.Tensor], lbrx.Tensor]] = {
    "as it is": lambda x, _: x * 1.0,
    "sum": lambda x, y: x + y,
    "weighted": lambda x, y: (x * 0.3 + y * 0.7) / 1.7,
    "choice": lambda x, y: lbrx.where(x > y, x - y, abs(y) * 2),
    "functions": lambda x, y: abs(x).sqrt() * y.exp(),
    "through f64": lambda x, y: x.to("f64") * 3 + y,
    "a number of its own": lambda x, y: x - y.max(),
    "one of two": lambda x, _: x.clip(-1, 1),
}


def result(name: str, x: lbrx.Tensor, y: lbrx.Tensor) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return EXPRESSIONS[name](x, y).to("bf16").numpy().astype(np.float32)


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("part", [slice(None), slice(1, 2), slice(0, 2), slice(1, None), slice(3, 4098)], ids=str)
def test_pairs_are_what_single_elements_are(name: str, part: slice) -> None:
    x, y = lbrx.tensor(ALL[part]), lbrx.tensor(OTHER[part])
    expected = result(name, WIDE[part], lbrx.tensor(OTHER[part].astype(np.float32)))
    np.testing.assert_array_equal(result(name, x, y), expected)


def test_bits_of_nan_are_kept() -> None:
    """And a NaN that signals becomes a quiet one."""
    bits, got = ALL.view(np.uint16), (lbrx.tensor(ALL) * 1.0).to("bf16").numpy().view(np.uint16)
    np.testing.assert_array_equal(got, np.where((bits & 0x7FFF) > 0x7F80, bits | 0x40, bits))


@pytest.mark.parametrize(
    ("expr", "is_paired"),
    [
        (lambda x: (x + 1).to("bf16"), True),
        (lambda x: x + 1, False),  # stored as f32
        (lambda x: (x + lbrx.uniform((1 << 16,), 1)).to("bf16"), False),
        (lambda x: (x[::2] + 1).to("bf16"), False),
        (lambda x: (x.to("f64") * 3).to("bf16"), True),
        (lambda x: (x + WIDE).to("bf16"), False),
    ],
)
def test_only_bf16_made_of_bf16_is_paired(
    expr: Callable[[lbrx.Tensor], lbrx.Tensor], is_paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[str] = []

    def written(program: Program) -> str:
        sources.append(kernel_source(program))
        return sources[-1]

    monkeypatch.setattr(kernel_cache, "kernel_source", written)
    monkeypatch.setattr(kernel_cache, "_programs", {})
    monkeypatch.setattr("lbrx.engine.plan_cache._plans", {})
    expr(lbrx.tensor(ALL)).numpy()
    assert ["pair_of_bf16" in source for source in sources] == [is_paired]
