"""Codes of quantized Hugging Face models are moved to GGUF and MLX if these have the same coding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.errors import FormatError
from lbrx.jobs.convert.mlx_repack import as_blocks
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx
from support.movable_codes import CASES, model, mxfp4, mxfp8
from support.quantized_weights import named, write_model
from support.tiny_models import tiny_arrays, tiny_config


@pytest.mark.parametrize("case", CASES)
def test_values_are_equal(case: str, tmp_path: Path) -> None:
    make, ggml_type, mode = CASES[case]
    path, plain = model(tmp_path / "m", make)
    lbrx.convert(path, tmp_path / "m.gguf")
    lbrx.convert(path, tmp_path / "mlx", format="mlx")
    types = {tensor.type_name for name, tensor in lbrx.open(tmp_path / "m.gguf").items() if "ffn" in name}
    assert types - {"f32"} == {ggml_type or "bf16"}
    lbrx.convert(tmp_path / "m.gguf", tmp_path / "back", format="safetensors")
    back = lbrx.open(tmp_path / "back")
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config.get("quantization", {}).get("mode") == mode
    mlx = {tensor.name: tensor for tensor in mlx_to_hf(read_mlx(tmp_path / "mlx")).tensors}
    for name, values in plain.items():
        if name in back:
            np.testing.assert_array_equal(back[name].to("f32").numpy(), values, name)
        if name in mlx:
            np.testing.assert_array_equal(mlx[name].make().to("f32").numpy(), values, name)
    assert "model.layers.0.mlp.down_proj.weight" in back
    assert "model.layers.0.mlp.down_proj.weight" in mlx


def test_stacked_experts_of_mxfp8(tmp_path: Path) -> None:
    config, rng = tiny_config("qwen3_moe"), np.random.default_rng(0)
    config |= {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 64, "head_dim": 16}
    tensors: dict[str, Any] = dict(tiny_arrays(config))
    plain, settings = dict(tensors), {}
    for name in [each for each in tensors if ".experts." in each]:
        weight = mxfp8(rng, tensors[name].shape)
        del tensors[name]
        tensors |= named(name.removesuffix(".weight"), weight)
        plain[name], settings = weight.values, weight.settings
    path = write_model(tmp_path / "m", tensors, settings, config)
    lbrx.convert(path, tmp_path / "mlx", format="mlx")
    contents = read_mlx(tmp_path / "mlx")
    assert contents.by_name["model.layers.0.mlp.switch_mlp.up_proj.weight"].type_name == "u32"
    back = mlx_to_hf(contents).by_name
    for name, values in plain.items():
        np.testing.assert_array_equal(back[name].make().to("f32").numpy(), values.astype(np.float32), name)


def test_every_exponent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = mxfp4(rng, (255, 64))
    weight.parts[".weight_scale"] = np.repeat(np.arange(255, dtype=np.uint8), 2).reshape(255, 2)
    path = write_model(tmp_path / "m", named("l", weight), weight.settings, {"dtype": "float32"})
    (planned,) = read_contents(path, keeps_codes=True).tensors
    assert planned.codes is not None
    blocks = as_blocks(planned.codes.make(), planned.codes.mode, "mxfp4")
    np.testing.assert_array_equal(blocks.dequantize().numpy(), lbrx.open(path)["l.weight"].numpy())


def test_exponents_that_are_not_numbers_are_not_moved(tmp_path: Path) -> None:
    weight = mxfp4(np.random.default_rng(0), (8, 64))
    weight.parts[".weight_scale"][3, 1] = 255
    path = write_model(tmp_path / "m", named("l", weight), weight.settings)
    (planned,) = read_contents(path, keeps_codes=True).tensors
    assert planned.codes is not None
    with pytest.raises(FormatError, match=r"'l.weight_scale' has exponents that are not numbers"):
        planned.codes.make()


def test_a_type_decodes_the_codes(tmp_path: Path) -> None:
    path, _ = model(tmp_path / "m", mxfp4)
    lbrx.convert(path, tmp_path / "m.gguf", type="f16")
    assert {tensor.type_name for tensor in lbrx.open(tmp_path / "m.gguf").values()} == {"f16", "f32"}
    lbrx.quantize(path, tmp_path / "q.gguf", to="q8_0", allow_requantize=True)
    assert "mxfp4" not in {tensor.type_name for tensor in lbrx.open(tmp_path / "q.gguf").values()}
