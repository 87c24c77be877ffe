"""Products in expressions: lazy, fused with what follows, and in panels of rows where they are large."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import lbrx
from lbrx.engine import products
from lbrx.engine.device import recorded_passes
from lbrx.engine.plan_cache import passes_of
from lbrx.errors import MemoryBudgetError, ShapeError
from lbrx.tensors.expr import MatMul
from lbrx.tensors.tensor import Tensor
from support.devices import computing_on
from support.references import normal

ROWS, INNER, COLUMNS = 9001, 32, 24  # two panels of 4096 rows; what is left belongs to the second


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every product of matrices is computed in panels, on the CPU: other devices have other bits for the whole."""
    monkeypatch.setattr(products, "STREAMED_BYTES", 0)
    with computing_on("cpu"):
        yield


def operands(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """a [rows, INNER], b [INNER, COLUMNS] and a bias."""
    return lbrx.tensor(normal(rows, INNER)), lbrx.tensor(normal(INNER, COLUMNS, seed=1)), lbrx.tensor(normal(COLUMNS))


def test_a_product_is_not_computed_until_its_values_are_wanted() -> None:
    a, b, bias = operands(5)
    with recorded_passes() as passes:
        total = a @ b + bias
    assert not passes
    assert isinstance((a @ b).expr, MatMul)
    assert repr(a @ b) == f"Tensor(f32, shape=(5, {COLUMNS}), device=cpu, not computed yet)"
    np.testing.assert_allclose(total.numpy(), a.numpy() @ b.numpy() + bias.numpy(), rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_fit_are_an_error_where_the_product_is_written() -> None:
    a, b, _ = operands(5)
    with pytest.raises(
        ShapeError, match=r"matmul: shapes \(5, 32\) and \(5, 32\) do not match; expected \[..., n, k\]"
    ):
        a @ a
    with pytest.raises(ShapeError, match=r"multiply by a number with \*"):
        a @ lbrx.tensor(2.0)
    with pytest.raises(ShapeError, match="do not broadcast"):
        a.reshape(5, 1, 32).broadcast_to((5, 2, 32)) @ b.reshape(1, 32, 24).broadcast_to((3, 32, 24))


RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "f32": lambda b: b,
    "bf16": lambda b: b.to("bf16").realize(),
    "an expression": lambda b: b * 2 + 1,
    "transposed f32": lambda b: b.T.realize().T,
    "transposed bf16": lambda b: b.T.to("bf16").realize().T,
    "transposed q8_0": lambda b: b.T.quantize("q8_0").realize().dequantize().T,
    "q8_0 of a larger matrix": lambda b: lbrx.concatenate([b, b[:, :8]], 1).quantize("q8_0").realize(),
}


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("left", ["f32", "bf16", "an expression"])
@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("rows", [ROWS, 8192, 4097])
def test_fused_products_have_the_bits_of_whole_ones(left: str, right: str, rows: int) -> None:
    a, b, _ = operands(rows)
    a = a - 0.5 if left == "an expression" else a.to(left).realize()
    b = RIGHT[right](b)
    residual = lbrx.tensor(normal(rows, b.shape[1], seed=3))
    whole = (a @ b).realize()
    fused = ((a @ b) * 0.5 + residual).maximum(0.0)
    np.testing.assert_array_equal(fused.numpy(), (whole * 0.5 + residual).maximum(0.0).numpy())


@pytest.mark.usefixtures("streaming")
def test_quantized_weights_stay_quantized() -> None:
    x, weight = lbrx.tensor(normal(ROWS, 64)), lbrx.tensor(normal(24, 64, seed=1)).quantize("q8_0").realize()
    product = Tensor(MatMul(x.expr, weight.expr, transpose_b=True))
    np.testing.assert_array_equal((product + 1).numpy(), product.numpy() + np.float32(1))
    expected = lbrx.ops.linear(x.numpy(), weight)
    np.testing.assert_array_equal(product.numpy(), expected)


@pytest.mark.usefixtures("streaming")
def test_results_do_not_depend_on_threads_or_chunks() -> None:
    a, b, bias = operands()
    results = []
    for threads, chunk_elements in ((1, 1 << 30), (1, 1), (2, 1), (3, 100_000)):
        with lbrx.using(threads=threads, chunk_elements=chunk_elements):
            total = a @ b + bias
            unit = total / total.norm(axis=-1, keepdims=True)
            found = lbrx.evaluate(total, total.sum(), total.kth_largest(777), total.top_k_mask(999), unit)
            results.append([np.asarray(each) for each in found])
    for found in results[1:]:
        for got, want in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("streaming")
def test_no_panel_is_computed_twice_and_none_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = operands(5 * 4096)
    panels: list[tuple[int, int]] = []
    multiply = products.ProductRows._multiply

    def recorded(self: products.ProductRows, first: int, stop: int, out: np.ndarray) -> None:
        panels.append((first, stop))
        multiply(self, first, stop, out)

    monkeypatch.setattr(products.ProductRows, "_multiply", recorded)
    with lbrx.using(chunk_elements=1, threads=1):
        (a @ b + bias).numpy()
    assert panels == [(first, first + 4096) for first in range(0, 5 * 4096, 4096)]


def test_operands_with_numbers_that_are_computed_first() -> None:
    a, b, _ = operands(50)
    centered = (a - a.mean()) @ (b / b.max())
    want = (a.numpy() - a.numpy().mean(dtype=np.float64)) @ (b.numpy() / b.numpy().max())
    np.testing.assert_allclose(centered.numpy(), want, rtol=1e-4, atol=1e-4)
    unit = (a / a.norm(axis=-1, keepdims=True)) @ b
    want = (a.numpy() / np.linalg.norm(a.numpy(), axis=-1, keepdims=True)) @ b.numpy()
    np.testing.assert_allclose(unit.numpy(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_products_of_products_and_views_of_products(is_streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_streaming:
        monkeypatch.setattr(products, "STREAMED_BYTES", 0)
    a, b, _ = operands(300)
    x, y = a.numpy(), b.numpy()
    want = {
        "a product": ((a @ b) @ b.T, x @ y @ y.T),
        "transposed": ((a @ b).T + 1, (x @ y).T + 1),
        "rows": ((a @ b)[7:20:3] * 2, (x @ y)[7:20:3] * 2),
        "columns": ((a @ b)[:, ::-2] + 1, (x @ y)[:, ::-2] + 1),
        "gathered": ((a @ b).rows([299, 0, 5]) + 1, (x @ y)[[299, 0, 5]] + 1),
        "reshaped": ((a @ b).reshape(100, 3, COLUMNS) + 1, (x @ y).reshape(100, 3, COLUMNS) + 1),
        "joined": (lbrx.concatenate([a @ b, a @ b * 2]), np.concatenate([x @ y, x @ y * 2])),
        "broadcast": ((a @ b) + lbrx.tensor(normal(2, 1, 1)), x @ y + normal(2, 1, 1)),
        "batched": (a.reshape(3, 100, INNER) @ b + 1, x.reshape(3, 100, INNER) @ y + 1),
        "a vector": (a[0] @ b + 1, x[0] @ y + 1),
        "a number": ((a[0] @ a[1]) * a, (x[0] @ x[1]) * x),
        "encoded": ((a @ b).reshape(100, 72)[:, :64].quantize("q8_0").dequantize(), None),
    }
    for name, (got, expected) in want.items():
        if expected is not None:
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4, err_msg=name)
    encoded = want["encoded"][0].numpy()
    np.testing.assert_allclose(encoded, (x @ y).reshape(100, 72)[:, :64], atol=0.3)


def test_operands_that_are_still_to_be_quantized() -> None:
    a, b, _ = operands(50)
    quantized = a.quantize("q8_0")
    want = quantized.realize().dequantize().numpy() @ b.numpy()
    np.testing.assert_allclose((quantized @ b + 1).numpy(), want + 1, rtol=1e-4, atol=1e-4)
    weight = b.T.reshape(24, 32).quantize("q8_0")
    want = a.numpy() @ weight.realize().dequantize().numpy().T
    product = Tensor(MatMul(a.expr, weight.expr, transpose_b=True))
    np.testing.assert_allclose((product + 1).numpy(), want + 1, rtol=1e-3, atol=1e-2)


def test_passes_count_products() -> None:
    a, b, bias = operands(50)
    assert passes_of(lambda: a * 2 + bias[:1]) == (1, False)
    assert passes_of(lambda: a @ b + bias) == (2, False)
    assert passes_of(lambda: Tensor(MatMul(a.expr, b.expr, block_rows=32)) + bias) == (1, False)


def test_explain_shows_products() -> None:
    a, b, bias = operands(50)
    text = lbrx.explain(a @ b + bias)
    assert text.startswith("pass 1: product of f32 (50, 32) and f32 (32, 24)\n\npass 2 over (50, 24)")
    weight = b.T.to("bf16").realize()
    streamed = Tensor(MatMul(a.expr, weight.expr, transpose_b=True, block_rows=32)) * 2
    line = "v0 = product of f32 (50, 32) and bf16 (24, 32) transposed, read in panels, f32 (unit)"
    assert line in lbrx.explain(streamed).splitlines()


def test_a_stored_product_over_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = operands(300)
    monkeypatch.setattr("lbrx.engine.evaluate.budget", lambda: type("", (), {"limit_bytes": 1000}))
    with pytest.raises(MemoryBudgetError, match=r"an intermediate f32 of shape \(300, 24\) has to be stored"):
        (a @ b).numpy()
