"""MLX's codings against what mx.quantize of MLX 0.32.4 made on a CPU: tests/golden/mlx/mlx_rows.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
import support
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.mlx import encoded_mlx

ROWS = dict(np.load(support.GOLDEN / "mlx" / "mlx_rows.npz"))
INPUT: npt.NDArray[np.float32] = ROWS["input"]
AFFINE = sorted(key.removesuffix("_codes") for key in ROWS if key.startswith("affine") and key.endswith("_codes"))


def words(tensor: lbrx.Tensor) -> npt.NDArray[np.uint32]:
    return tensor.raw().numpy().view(np.uint32).reshape(tensor.shape)


@pytest.mark.parametrize("key", AFFINE)
def test_affine_coding(key: str) -> None:
    _, bits, group_size, dtype = key.split("_")
    mode = mlx.MlxMode("affine", int(bits), int(group_size))
    coded = encoded_mlx(lbrx.tensor(INPUT).to(dtype), mode)
    assert coded.biases is not None
    assert np.array_equal(words(coded.weight), ROWS[f"{key}_codes"])
    assert coded.scales.dtype.name == coded.biases.dtype.name == dtype
    assert np.array_equal(coded.scales.to("f32").numpy(), ROWS[f"{key}_scales"])
    assert np.array_equal(coded.biases.to("f32").numpy(), ROWS[f"{key}_biases"])
    if f"{key}_values" in ROWS:
        found = mlx.dequantize(coded.weight, coded.scales, coded.biases, mode).numpy()
        assert np.array_equal(found, ROWS[f"{key}_values"])


@pytest.mark.parametrize("name", mlx.FLOAT_MODES)
def test_codings_of_small_floats(name: str) -> None:
    mode = mlx.MlxMode(name, *mlx.FLOAT_MODES[name])
    coded = encoded_mlx(lbrx.tensor(INPUT), mode)
    assert coded.biases is None
    assert np.array_equal(words(coded.weight), ROWS[f"{name}_codes"])
    assert np.array_equal(coded.scales.numpy(), ROWS[f"{name}_scales"])
    assert np.array_equal(mlx.dequantize(coded.weight, coded.scales, None, mode).numpy(), ROWS[f"{name}_values"])


def test_scales_may_be_views_and_expressions() -> None:
    mode = mlx.MlxMode(bits=8, group_size=32)
    coded = encoded_mlx(lbrx.tensor(INPUT), mode)
    assert coded.biases is not None
    expected = mlx.dequantize(coded.weight, coded.scales, coded.biases, mode).numpy()
    scales = lbrx.concatenate([coded.scales, coded.scales])[len(INPUT) :]
    assert np.array_equal(mlx.dequantize(coded.weight, scales, coded.biases * 1, mode).numpy(), expected)


def test_files_keep_the_parts(tmp_path: Path) -> None:
    mode = mlx.MlxMode(bits=3, group_size=32)
    coded = encoded_mlx(lbrx.tensor(INPUT).to("bf16"), mode)
    assert coded.biases is not None
    path = tmp_path / "model.safetensors"
    lbrx.save(path, {"w.weight": coded.weight, "w.scales": coded.scales, "w.biases": coded.biases})
    model = lbrx.open(path, raw=True)
    assert model["w.weight"].type_name == "u32"
    found = mlx.dequantize(model["w.weight"], model["w.scales"], model["w.biases"], mode)
    assert np.array_equal(found.numpy(), mlx.dequantize(coded.weight, coded.scales, coded.biases, mode).numpy())
    assert float((found - INPUT).norm() / np.linalg.norm(INPUT)) < 0.2


def test_scales_may_be_computed() -> None:
    mode = mlx.MlxMode(bits=8, group_size=32)
    coded = encoded_mlx(lbrx.tensor(INPUT), mode)
    assert coded.biases is not None
    doubled = mlx.dequantize(coded.weight, coded.scales * 2, coded.biases * 2, mode).numpy()
    assert np.array_equal(doubled, 2 * mlx.dequantize(coded.weight, coded.scales, coded.biases, mode).numpy())


def test_modes_that_mlx_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match="no affine encoding with 7 bits in groups of 64"):
        mlx.MlxMode(bits=7)
    with pytest.raises(UsageError, match="no affine encoding with 4 bits in groups of 48"):
        mlx.MlxMode(group_size=48)
    with pytest.raises(UsageError, match=r"no encoding 'mxfp4' with 4 bits in groups of 64; expected affine, mxfp4"):
        mlx.MlxMode("mxfp4")


def test_parts_that_do_not_fit_are_refused() -> None:
    mode = mlx.MlxMode(group_size=32)
    with pytest.raises(ShapeError, match="in groups of 32; expected rows of whole groups"):
        encoded_mlx(lbrx.tensor(np.zeros((2, 40), np.float32)), mode)
    coded = encoded_mlx(lbrx.tensor(INPUT), mode)
    with pytest.raises(ShapeError, match="do not match a weight"):
        mlx.dequantize(coded.weight, coded.scales[:3], coded.biases, mode)
    with pytest.raises(ShapeError, match="expected biases only in affine mode"):
        mlx.dequantize(coded.weight, coded.scales, None, mode)
