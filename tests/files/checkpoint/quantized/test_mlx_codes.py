"""Scales of codes in the form of MLX, for stacks of matrices."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lbrx

NAME = "model.layers.0.mlp.experts.up_proj.weight"


@pytest.mark.parametrize("shape", [(1,), (), (4, 1, 1)])
def test_scales_of_whole_matrices_are_repeated_for_every_group(shape: tuple[int, ...], tmp_path: Path) -> None:
    codes = np.random.default_rng(0).standard_normal((4, 32, 64)).astype(ml_dtypes.float8_e4m3fn)
    scales = np.exp2(np.arange(np.prod(shape, dtype=int), dtype=np.float32) - 2).reshape(shape)
    tensors = {NAME: lbrx.tensor(codes), f"{NAME}_scale": lbrx.tensor(scales)}
    lbrx.save(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    settings = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = lbrx.open(tmp_path)
    stored = model.stored_codes(NAME)
    assert stored is not None
    made = stored.make()
    assert (stored.mode.mode, made.weight.shape, made.scales.shape) == ("mxfp8", (4, 32, 16), (4, 32, 2))
    factors = np.exp2(made.scales.numpy().astype(np.float32) - 127)
    values = codes.astype(np.float32) * np.repeat(factors, 32, axis=-1)
    np.testing.assert_array_equal(model[NAME].to("f32").numpy(), values)
