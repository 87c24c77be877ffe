"""Tensors to Metal, products there, and back: as on the CPU within the bounds of f32, over odd shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.ops.products import linear
from lbrx.errors import ShapeError
from support.metal_passes import device
from support.metal_shaders import needs_clang

pytestmark = needs_clang
RANDOM = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def _metal() -> Iterator[None]:
    with using_metal(device()):
        yield


def drawn(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def assert_product(got: lbrx.Tensor, left: lbrx.Tensor, right: lbrx.Tensor, slack: float = 2.0**-20) -> None:
    """Within the slack of the sums of the magnitudes of products."""
    assert got.device == "metal"
    a, b = left.to("f32").numpy().astype(np.float64), right.to("f32").numpy().astype(np.float64)
    back = got.to_device("cpu")
    assert back.dtype.name == "f32"
    assert back.shape == (a @ b).shape
    assert np.all(np.abs(back.numpy() - a @ b) <= slack * (np.abs(a) @ np.abs(b)))
    assert np.all(np.abs((left @ right).numpy() - a @ b) <= slack * (np.abs(a) @ np.abs(b)))  # the CPU's own


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_there_multiplied_and_back(name: str) -> None:
    a, b = lbrx.tensor(drawn(37, 53), name), lbrx.tensor(drawn(53, 21), name)
    there = a.to_device("metal")
    assert_product(there @ b.to_device("metal"), a, b)
    assert_product(there @ b, a, b)
    assert_product(a @ b.to_device("metal"), a, b)


def test_views_expressions_vectors_and_batches() -> None:
    a, b = lbrx.tensor(drawn(2, 9, 17)), lbrx.tensor(drawn(11, 17), "bf16")
    there = a.to_device("metal")
    assert_product(there @ b.to_device("metal").T, a, b.T)
    assert_product((there * 2 + 1) @ b.T, a * 2 + 1, b.T)
    assert_product(there[0] @ b.T[:, 3], a[0], b.T[:, 3])
    assert_product(there[1, 4] @ b.T, a[1, 4], b.T)
    assert_product(there.transpose(0, 2, 1) @ there, a.transpose(0, 2, 1), a)
    assert_product(there.to("i8") @ b.T, a.to("i8").to("f32"), b.T)


def test_products_stay_on_the_device() -> None:
    a = lbrx.tensor(drawn(8, 8)).to_device("metal")
    squared = (a @ a) * 0.5 + a
    assert squared.device == "metal"
    expected = (a.numpy() @ a.numpy()) * 0.5 + a.numpy()
    np.testing.assert_allclose(squared.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_0"])
def test_quantized_weights_are_multiplied_as_they_are(scheme: str, tmp_path: Path) -> None:
    lbrx.save(tmp_path / "model.gguf", {"w": lbrx.tensor(drawn(19, 96)).quantize(scheme)}, {})
    weight = lbrx.open(tmp_path / "model.gguf")["w"]
    decoded = weight.dequantize().T
    for vectors in (1, 7):
        x = lbrx.tensor(drawn(vectors, 96))
        assert_product(linear(x.to_device("metal"), weight), x, decoded)
        assert_product(x.to_device("metal") @ decoded, x, decoded)


def test_shapes_that_do_not_fit() -> None:
    a = lbrx.tensor(drawn(4, 5)).to_device("metal")
    with pytest.raises(ShapeError, match=r"\(4, 5\) and \(4, 5\) do not match"):
        a @ a
    with pytest.raises(ShapeError, match="multiply by a number with"):
        a @ lbrx.tensor(np.float32(3))
