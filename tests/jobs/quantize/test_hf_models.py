"""Models quantized for transformers and vLLM: parts, settings, and values read back, compared with NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.run import execute
from lbrx.jobs.quantize import QuantizeOptions, parse_options
from lbrx.jobs.quantize.hf_model import quantize_hf
from lbrx.jobs.quantize.hf_types import HF_TYPES
from support.quantized_weights import E2M1, pack_halves, pack_stream, repeat
from support.quantizing_models import hf_model

DOWN = "model.layers.1.mlp.down_proj"
BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
ERRORS = {  # relative, of normal values
    "ct_int4": 0.15,
    "ct_int4_asym": 0.13,
    "ct_int8_a16": 0.01,
    "ct_int8": 0.02,
    "ct_fp8": 0.04,
    "ct_fp8_block": 0.04,
    "ct_nvfp4": 0.12,
    "ct_mxfp4": 0.17,
    "gptq_4": 0.15,
    "gptq_8": 0.01,
    "awq_4": 0.13,
}


def normal(name: str, shape: tuple[int, ...]) -> lbrx.Tensor:
    return lbrx.normal(shape, 3, name).to("bf16")


def written(path: Path, contents: Contents, options: QuantizeOptions) -> tuple[lbrx.Checkpoint, dict[str, Any]]:
    quantization = quantize_hf(contents, options)
    execute(plan_output(quantization.contents, path))
    return lbrx.open(path), json.loads((path / "config.json").read_text())["quantization_config"]


def test_every_type_is_tried() -> None:
    assert set(ERRORS) == set(HF_TYPES)


@pytest.mark.parametrize("name", ERRORS)
def test_values_read_back(name: str, tmp_path: Path) -> None:
    model = hf_model(values=normal)
    opened, _ = written(tmp_path / "m", model, QuantizeOptions(name))
    assert set(opened) == set(model.by_name)
    for each, planned in model.by_name.items():
        expected = planned.make().to("f32").numpy()
        error = np.linalg.norm(opened[each].to("f32").numpy() - expected) / np.linalg.norm(expected)
        is_coded = each.endswith("proj.weight")
        assert error < ERRORS[name] if is_coded else error == 0, (each, error)
        assert error > 0 or not is_coded


def bf16(values: Any) -> Any:
    return np.asarray(values, np.float32).astype(BF16).astype(np.float32)


def weight_and_parts(name: str, path: Path) -> tuple[Any, Any]:
    model = hf_model(values=normal)
    written(path, model, QuantizeOptions(name))
    return model.by_name[f"{DOWN}.weight"].make().to("f32").numpy(), lbrx.open(path, raw=True)


def test_integers_of_compressed_tensors(tmp_path: Path) -> None:
    weight, stored = weight_and_parts("ct_int4", tmp_path / "m")
    tiles = weight.reshape(len(weight), -1, 128)
    scales = bf16(np.abs(tiles).max(-1) / np.float32(7.5))
    codes = np.clip(np.rint(bf16(tiles / scales[..., None])), -8, 7).reshape(weight.shape).astype(int)
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_packed"].numpy(), pack_stream(codes + 8, 4))
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_scale"].to("f32").numpy(), scales)
    assert stored[f"{DOWN}.weight_shape"].tolist() == list(weight.shape)


def test_zero_points_of_compressed_tensors(tmp_path: Path) -> None:
    weight, stored = weight_and_parts("ct_int4_asym", tmp_path / "m")
    tiles = weight.reshape(len(weight), -1, 128)
    low, high = tiles.min(-1), tiles.max(-1)
    scales = bf16(bf16(high - low) / np.float32(15))
    zeros = np.rint(np.clip(bf16(-8 - bf16(low / scales)), -8, 7))
    codes = np.clip(np.rint(bf16(bf16(tiles / scales[..., None]) + zeros[..., None])), -8, 7)
    packed = pack_stream(codes.reshape(weight.shape).astype(int) + 8, 4)
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_packed"].numpy(), packed)
    packed = pack_stream(zeros.T.astype(int) + 8, 4).T
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_zero_point"].numpy(), packed)


def test_blocks_of_fp8(tmp_path: Path) -> None:
    weight, stored = weight_and_parts("ct_fp8_block", tmp_path / "m")
    tiles = weight.reshape(len(weight) // 128, 128, -1, 128)
    scales = bf16(np.abs(tiles).max((1, 3)) / np.float32(448))
    codes = bf16(weight / repeat(scales, (128, 128), weight.shape)).astype(E4M3)
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_scale"].to("f32").numpy(), scales)
    np.testing.assert_array_equal(stored[f"{DOWN}.weight"].to("f32").numpy(), codes.astype(np.float32))


def test_floats_of_4_bits(tmp_path: Path) -> None:
    weight, stored = weight_and_parts("ct_mxfp4", tmp_path / "m")
    tiles = weight.reshape(len(weight), -1, 32)
    mantissa, exponent = np.frexp(np.abs(tiles).max(-1))  # 0.5 <= mantissa < 1
    exponents = exponent - 1 + (mantissa >= 0.875) - 2 + 127
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_scale"].numpy(), exponents)
    steps = tiles / np.exp2(exponents - 127.0)[..., None]
    distances = np.abs(np.abs(steps)[..., None] - E2M1[:8])
    distances[..., 1::2] += 1e-9  # ties go to the even code
    codes = (distances.argmin(-1) + 8 * (steps < 0)).reshape(weight.shape)
    np.testing.assert_array_equal(stored[f"{DOWN}.weight_packed"].numpy(), pack_halves(codes))


def test_weights_that_are_joined_share_a_number(tmp_path: Path) -> None:
    weights, stored = hf_model(values=normal).by_name, weight_and_parts("ct_nvfp4", tmp_path / "m")[1]
    for names in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
        modules = [f"model.layers.0.{name}" for name in names]
        largest = max(float(abs(weights[f"{each}.weight"].make().to("f32")).max()) for each in modules)
        numbers = [float(stored[f"{each}.weight_global_scale"][0]) for each in modules]
        assert numbers == [bf16(bf16(np.float32(1) / np.float32(largest)) * np.float32(2688))] * len(names)


def test_a_weight_of_zeros(tmp_path: Path) -> None:
    for name in HF_TYPES:
        opened, _ = written(
            tmp_path / name, hf_model(values=lambda _, s: lbrx.full(s, 0.0, "bf16")), QuantizeOptions(name)
        )
        assert not opened[f"{DOWN}.weight"].to("f32").numpy().any(), name


# -- which layers ------------------------------------------------------------------------------------------------------


def test_layers_that_stay(tmp_path: Path) -> None:
    model = hf_model(model_type="qwen3_moe", experts=2, values=normal)
    opened, settings = written(tmp_path / "m", model, QuantizeOptions("ct_int4", group_size=64))
    stored = lbrx.open(tmp_path / "m", raw=True)
    assert opened["model.layers.1.mlp.experts.1.down_proj.weight"].shape == (128, 256)
    assert "model.layers.0.mlp.experts.1.down_proj.weight_packed" in stored
    assert settings["ignore"] == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "lm_head"]
    (group,) = settings["config_groups"].values()
    assert group["weights"]["group_size"] == 64


def test_experts_in_stacks_are_separated(tmp_path: Path) -> None:
    experts, hidden, columns = 2, 64, 128
    shapes = {"gate_up_proj": (experts, 2 * hidden, columns), "down_proj": (experts, columns, hidden)}
    tensors = {f"model.layers.0.mlp.experts.{name}": normal(name, shape) for name, shape in shapes.items()}
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": 2, "hidden_size": columns}
    config |= {"moe_intermediate_size": hidden, "num_attention_heads": 2, "vocab_size": 8, "intermediate_size": 64}
    lbrx.save(tmp_path / "in" / "model.safetensors", tensors)
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    lbrx.quantize(tmp_path / "in", tmp_path / "out", "ct_fp8")
    opened = lbrx.open(tmp_path / "out")
    up = tensors["model.layers.0.mlp.experts.gate_up_proj"][1, hidden:].to("f32").numpy()
    error = np.abs(opened["model.layers.0.mlp.experts.1.up_proj.weight"].to("f32").numpy() - up).max()
    assert 0 < error < 0.2


def test_types_of_single_layers(tmp_path: Path) -> None:
    choices = ["layers.0.*down_proj=ct_fp8", "layers.1.*v_proj=bf16"]
    options = parse_options("ct_int4", tensor_types=choices, output_type="ct_int8_a16", embedding_type="f16")
    opened, settings = written(tmp_path / "m", hf_model(values=normal), options)
    groups = {
        group["format"] + str(group["weights"]["num_bits"]): group for group in settings["config_groups"].values()
    }
    assert settings["format"] == "mixed-precision"
    assert groups["pack-quantized4"]["targets"] == ["Linear"]
    assert groups["float-quantized8"]["targets"] == ["model.layers.0.mlp.down_proj"]
    assert groups["pack-quantized8"]["targets"] == ["lm_head"]
    assert settings["ignore"] == ["model.layers.1.self_attn.v_proj"]
    assert lbrx.open(tmp_path / "m", raw=True)["model.embed_tokens.weight"].dtype == "f16"
    assert opened["lm_head.weight"].shape == hf_model().by_name["lm_head.weight"].shape


def test_settings_of_gptq_and_awq(tmp_path: Path) -> None:
    model = hf_model(model_type="qwen3_moe", experts=1, values=normal)
    _, gptq = written(tmp_path / "g", model, parse_options("gptq_4", tensor_types=["0.self_attn.k_proj=gptq_8"]))
    assert (gptq["bits"], gptq["group_size"], gptq["sym"], gptq["desc_act"]) == (4, 128, True, False)
    assert gptq["dynamic"] == {
        r"+:^model\.layers\.0\.self_attn\.k_proj$": {"bits": 8},
        r"-:^model\.layers\.0\.mlp\.gate$": {},
        r"-:^model\.layers\.1\.mlp\.gate$": {},
    }
    _, awq = written(tmp_path / "a", model, QuantizeOptions("awq_4"))
    assert awq["modules_to_not_convert"] == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "lm_head"]


def test_rows_that_are_no_groups_stay() -> None:
    plan = quantize_hf(hf_model(columns=96, hidden=128), QuantizeOptions("ct_int4"))
    reasons = {tensor.source.name: tensor.choice.reason for tensor in plan.coded}
    assert reasons["model.layers.0.self_attn.q_proj.weight"] == "rows of 96 are not a multiple of the group size 128"
    assert reasons["lm_head.weight"] == "output matrix"
    assert reasons["model.embed_tokens.weight"] == "embedding"
    (warning,) = plan.contents.warnings
    assert warning.startswith("12 layers, such as 'model.layers.0.self_attn.q_proj.weight', cannot be quantized as")
    assert warning.endswith("rows of 96 are not a multiple of the group size 128; --group-size 32 fits them")
    assert f"{DOWN}.weight_packed" in plan.contents.by_name


def test_inputs_of_other_formats(tmp_path: Path) -> None:
    model = written_plainly(tmp_path / "plain", hf_model(values=normal))
    lbrx.convert(model, tmp_path / "mlx", format="mlx")
    lbrx.quantize(tmp_path / "mlx", tmp_path / "a", "ct_int8")
    lbrx.quantize(model, tmp_path / "b", "ct_int8", max_shard_bytes=100_000)
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 1
    first, second = (lbrx.open(tmp_path / name, raw=True) for name in "ab")
    assert set(first) == set(second)
    for name in first:
        np.testing.assert_array_equal(first[name].to("f32").numpy(), second[name].to("f32").numpy())


def written_plainly(path: Path, contents: Contents) -> Path:
    execute(plan_output(contents, path))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "ct_fp8", "group_size": 64}, "ct_fp8 has groups of a fixed size"),
        ({"to": "gptq_4", "group_size": 48}, "gptq_4 has no groups of 48; expected one of 32, 64, 128"),
        ({"to": "gptq_4", "tensor_types": ["a=ct_int8"]}, "'ct_int8' does not go with gptq_4"),
        ({"to": "ct_int4", "tensor_types": ["a=ct_int"]}, "did you mean"),
        ({"to": "ct_int4", "embedding_type": "ct_int8"}, "--embedding-type: 'ct_int8' does not go with ct_int4"),
        ({"to": "ct_int4", "pure": True}, "--pure is for GGUF files, and ct_int4 makes SafeTensors"),
    ],
)
def test_wrong_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options(**arguments)


def test_models_without_such_layers() -> None:
    with pytest.raises(UsageError, match="no layer that can be quantized as ct_int4"):
        quantize_hf(hf_model(columns=8, hidden=8), QuantizeOptions("ct_int4"))
    with pytest.raises(UsageError, match="one column for each output"):
        quantize_hf(hf_model(model_type="gpt2"), QuantizeOptions("ct_int4"))
