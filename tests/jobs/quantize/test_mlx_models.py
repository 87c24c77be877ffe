"""Models for MLX and of integers: which weights are coded, how, and what config.json says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.files.checkpoint.integer_parts import QUANTIZATION_KEY
from lbrx.files.output.contents import PlannedTensor
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.run import execute
from lbrx.jobs.quantize import QuantizeOptions, parse_options, quantize
from lbrx.jobs.quantize.integer_model import quantize_integers
from lbrx.jobs.quantize.mlx_model import quantize_mlx
from lbrx.tensors.codecs.mlx import MlxMode, encoded_mlx
from support.quantizing_models import hf_model

DOWN = "model.layers.1.mlp.down_proj"
V = "model.layers.{}.self_attn.v_proj"


def equal(a: lbrx.Tensor, b: lbrx.Tensor | None) -> bool:
    assert b is not None
    return a.type_name == b.type_name and np.array_equal(a.raw().numpy(), b.raw().numpy())


@pytest.mark.parametrize("target", ["mlx_4", "mlx_3", "mlx_mxfp4", "mlx_nvfp4", "mlx_mxfp8"])
def test_weights_become_parts(target: str) -> None:
    model = hf_model()
    options = QuantizeOptions(target)
    result = quantize_mlx(model, options).contents
    mode = options.target.mode  # type: ignore[union-attr]
    expected = encoded_mlx(model.by_name[f"{DOWN}.weight"].make(), mode)
    for part in ("weight", "scales", "biases"):
        name = f"{DOWN}.{part}"
        if part == "biases" and mode.mode != "affine":
            assert name not in result.by_name
            continue
        planned = result.by_name[name]
        made = planned.make()
        assert (planned.shape, planned.type_name) == (made.shape, made.type_name)
        assert equal(made, getattr(expected, part))
    assert result.format == "mlx"
    assert result.config is not None
    settings = {"group_size": mode.group_size, "bits": mode.bits, "mode": mode.mode}
    assert result.config["quantization"] == result.config["quantization_config"] == settings


def test_norms_stay_and_embedding_and_output_are_coded() -> None:
    result = quantize_mlx(hf_model(), QuantizeOptions("mlx_4")).contents
    assert result.by_name["model.norm.weight"].type_name == "f32"
    assert {"model.embed_tokens.scales", "lm_head.scales"} <= result.by_name.keys()
    assert "model.norm.scales" not in result.by_name


def test_rows_that_are_no_groups_stay() -> None:
    plan = quantize_mlx(hf_model(columns=96, hidden=128), QuantizeOptions("mlx_4"))
    assert plan.contents.by_name["model.layers.0.self_attn.q_proj.weight"].type_name == "f32"
    assert f"{DOWN}.scales" in plan.contents.by_name
    reasons = {tensor.source.name: tensor.choice.reason for tensor in plan.coded}
    assert reasons["lm_head.weight"] == "rows of 96 are not a multiple of the group size 64"


@pytest.mark.parametrize(("recipe", "low", "high"), [("mixed_2_6", 2, 6), ("mixed_3_4", 3, 4), ("mixed_4_6", 4, 6)])
def test_mixed_recipes(recipe: str, low: int, high: int) -> None:
    result = quantize_mlx(hf_model(16), QuantizeOptions(recipe)).contents
    assert result.config is not None
    settings = result.config["quantization"]
    bits = {name: entry["bits"] for name, entry in settings.items() if isinstance(entry, dict)}
    more = {0, 1, 4, 7, 10, 13, 14, 15}
    assert {layer for layer in range(16) if bits[V.format(layer)] == high} == more
    assert {layer for layer in range(16) if bits[f"model.layers.{layer}.mlp.down_proj"] == high} == more
    assert bits["lm_head"] == high
    assert bits["model.embed_tokens"] == bits["model.layers.0.mlp.up_proj"] == low
    assert settings["bits"] == 4  # as mlx_lm writes it, though no layer goes by it
    assert len(bits) == 16 * 7 + 2
    words = result.by_name[f"{V.format(0)}.weight"].shape[-1]
    assert words == 128 * high // 32


def test_routers_keep_eight_bits_where_mlx_does_so() -> None:
    model = hf_model(1, model_type="qwen3_moe", experts=4)
    result = quantize_mlx(model, QuantizeOptions("mlx_4")).contents
    assert result.config is not None
    assert result.config["quantization"]["model.layers.0.mlp.gate"] == {"group_size": 64, "bits": 8, "mode": "affine"}
    stack = result.by_name["model.layers.0.mlp.switch_mlp.up_proj.weight"]
    assert stack.shape == (4, 256, 128 * 4 // 32)
    expected = encoded_mlx(model.by_name["model.layers.0.mlp.switch_mlp.up_proj.weight"].make(), MlxMode())
    assert equal(stack.make(), expected.weight)


def test_options_of_single_layers() -> None:
    options = parse_options(
        "mlx_4",
        group_size=32,
        tensor_types=["v_proj=mlx_8", "q_proj=bf16"],
        output_type="mlx_mxfp4",
        embedding_type="f32",
    )
    plan = quantize_mlx(hf_model(1), options)
    config = plan.contents.config
    assert config is not None
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        V.format(0): {"group_size": 32, "bits": 8, "mode": "affine"},
        "lm_head": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    }
    assert plan.contents.by_name["model.layers.0.self_attn.q_proj.weight"].make().type_name == "bf16"
    assert plan.contents.by_name["model.embed_tokens.weight"].type_name == "f32"


def test_the_output_can_be_left() -> None:
    plan = quantize_mlx(hf_model(1), QuantizeOptions("mlx_4", leave_output=True))
    assert plan.contents.by_name["lm_head.weight"].type_name == "f32"


def test_half_precision_scales() -> None:
    tensor = PlannedTensor.of("a.weight", lbrx.normal((8, 64), 1).to("bf16"))
    result = quantize_mlx(replace(hf_model(1), tensors=(tensor,)), QuantizeOptions("mlx_4")).contents
    assert result.by_name["a.scales"].type_name == result.by_name["a.scales"].make().type_name == "bf16"


def test_what_cannot_be_made_for_mlx() -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        quantize_mlx(replace(hf_model(), config=None), QuantizeOptions("mlx_4"))
    with pytest.raises(UsageError, match="no 'num_hidden_layers'"):
        quantize_mlx(replace(hf_model(), config={}), QuantizeOptions("mixed_3_6"))
    other = tuple(tensor for tensor in hf_model().tensors if "down" not in tensor.name)
    with pytest.raises(UsageError, match="no 'down_proj'"):
        quantize_mlx(replace(hf_model(), tensors=other), QuantizeOptions("mixed_3_6"))


# -- integers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["int8", "int4", "int2"])
def test_integers(scheme: str) -> None:
    model = hf_model(1)
    result = quantize_integers(model, QuantizeOptions(scheme, group_size=32)).contents
    name = "model.layers.0.mlp.up_proj.weight"
    coded = model.by_name[name].make().quantize(scheme, group_size=32)
    codes, scales = result.by_name[name], result.by_name[f"{name}.scales"]
    assert (codes.type_name, scales.shape) == (f"i{scheme[3:]}", (256, 4))
    assert np.array_equal(codes.make().raw().numpy(), coded.raw().numpy())
    assert coded.quantization is not None
    assert equal(scales.make(), coded.quantization.scales)
    descriptions = json.loads(result.metadata[QUANTIZATION_KEY])
    assert descriptions[name] == {"scheme": scheme, "scales": f"{name}.scales"}
    assert "model.norm.weight" not in descriptions


@pytest.mark.parametrize("scheme", ["int4", "int2"])
def test_integers_that_share_bytes_are_written_in_several_pieces(scheme: str, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    values = lbrx.normal((2304, 2048), 1, "w").to("bf16").realize()
    (tmp_path / "model").mkdir()
    lbrx.save(tmp_path / "model" / "model.safetensors", {name: values}, {"format": "pt"})
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    quantize(tmp_path / "model", tmp_path / "out", scheme)
    lbrx.save(tmp_path / "copy.safetensors", dict(lbrx.open(tmp_path / "out")))
    coded = values.quantize(scheme)
    for file in ("out", "copy.safetensors"):
        assert np.array_equal(lbrx.open(tmp_path / file)[name].raw().numpy(), coded.raw().numpy())


def test_integers_of_some_layers_only() -> None:
    options = parse_options("int8", tensor_types=["q_proj=bf16"], leave_output=True, embedding_type="f16")
    plan = quantize_integers(hf_model(1, columns=64, hidden=96), options)
    types = {tensor.source.name: tensor.choice.type_name for tensor in plan.coded}
    assert types["model.layers.0.self_attn.q_proj.weight"] == "bf16"
    assert types["model.layers.0.self_attn.k_proj.weight"] == "int8"
    assert types["model.layers.0.mlp.down_proj.weight"] == "f32"  # rows of 96 are not a multiple of 64
    assert (types["lm_head.weight"], types["model.embed_tokens.weight"]) == ("f32", "f16")
    assert plan.contents.by_name["model.embed_tokens.weight"].make().type_name == "f16"


def test_integers_come_back_as_they_were_written(tmp_path: Path) -> None:
    model = hf_model(1)
    result = quantize_integers(model, QuantizeOptions("int8")).contents
    execute(plan_output(result, tmp_path / "out"))
    name = "model.layers.0.mlp.up_proj.weight"
    stored, values = lbrx.open(tmp_path / "out")[name], model.by_name[name].make()
    assert stored.type_name == "int8"
    assert float((stored - values).norm() / values.norm()) < 0.01


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "glm4_moe", "dots1", "bailing_moe"])
def test_routers_that_are_not_linear_in_mlx_lm_stay(model_type: str) -> None:
    model = hf_model()
    gate = "model.layers.1.mlp.gate.weight"
    router = PlannedTensor.of(gate, lbrx.full((4, 256), 1.0, "f32"))
    changed = replace(
        model, tensors=(*model.tensors, router), config={**(model.config or {}), "model_type": model_type}
    )
    changed = replace(changed, config={k: v for k, v in (changed.config or {}).items() if k != "architectures"})
    result = quantize_mlx(changed, QuantizeOptions("mlx_4")).contents
    assert result.by_name[gate].type_name == "f32"
    assert "model.layers.1.mlp.gate.scales" not in result.by_name
    assert f"{DOWN}.scales" in result.by_name
