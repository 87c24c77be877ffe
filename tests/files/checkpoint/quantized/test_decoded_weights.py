"""Weights of quantized checkpoints against NumPy: the same bits, whole and in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from tests.support.quantized_weights import (
    BF16,
    E2M1,
    E4M3,
    GROUP,
    SCHEMES,
    Array,
    bitsandbytes,
    fp8,
    gptq,
    named,
    pack_halves,
    write_model,
)

import lbrx
from lbrx.errors import FormatError, TensorNotFound

SHAPE = (48, 128)


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_same(tensor: lbrx.Tensor, expected: Array) -> None:
    assert tensor.dtype.name == "bf16"
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(tensor.numpy().view(np.uint16), expected.view(np.uint16))
    piece = (..., slice(5, 31), slice(3, 77))
    np.testing.assert_array_equal(tensor[piece].to("f32").numpy(), expected[piece].astype(np.float32))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values(scheme: str, tmp_path: Path) -> None:
    weight = SCHEMES[scheme](rng(), SHAPE)
    plain = rng(6).standard_normal((3, 8)).astype(np.float32)
    path = write_model(tmp_path / "m", {**named("a.b", weight), "norm.weight": plain}, weight.settings)
    model = lbrx.open(path)
    assert sorted(model) == ["a.b.weight", "norm.weight"]
    assert len(model) == 2
    assert_same(model["a.b.weight"], weight.values)
    np.testing.assert_array_equal(model["norm.weight"].numpy(), plain)
    assert "quantization_config" not in (model.config or {})
    raw = lbrx.open(path, raw=True)
    assert set(raw) == {*named("a.b", weight), "norm.weight"}
    assert "quantization_config" in (raw.config or {})
    for ending, part in weight.parts.items():
        assert raw[f"a.b{ending}"].numpy().tobytes() == part.tobytes()


@pytest.mark.parametrize("scheme", ["fp8 blocks", "modelopt nvfp4", "bitsandbytes nested", "bitsandbytes int8"])
def test_a_file_without_a_config(scheme: str, tmp_path: Path) -> None:
    weight = SCHEMES[scheme](rng(), SHAPE)
    lbrx.save(tmp_path / "a.safetensors", named("l", weight))
    assert_same(lbrx.open(tmp_path / "a.safetensors")["l.weight"], weight.values)


@pytest.mark.parametrize("shape", [(40, 100), (16, 32), (1, 7)])
def test_blocks_that_do_not_divide_the_weight(shape: tuple[int, int], tmp_path: Path) -> None:
    weight = fp8(rng(), shape, block=(16, 32))
    assert_same(lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings))["l.weight"], weight.values)


def test_fused_experts_in_fp8(tmp_path: Path) -> None:
    experts = [fp8(np.random.default_rng(seed), (40, 96)) for seed in range(3)]
    codes, scales = (np.stack([expert.parts[part] for expert in experts]) for part in (".weight", ".weight_scale_inv"))
    tensors = {"l.experts.up_proj": codes, "l.experts.up_proj_scale_inv": scales}
    model = lbrx.open(write_model(tmp_path / "m", tensors, experts[0].settings))
    assert list(model) == ["l.experts.up_proj"]
    assert_same(model["l.experts.up_proj"], np.stack([expert.values for expert in experts]))

    codes, scales = codes[:, :32], scales[:, :2]  # without a config, the weight is divided into equal blocks
    lbrx.save(tmp_path / "a.safetensors", {"l.up_proj": codes.copy(), "l.up_proj_scale_inv": scales.copy()})
    values = np.stack([expert.values[:32] for expert in experts])
    assert_same(lbrx.open(tmp_path / "a.safetensors")["l.up_proj"], values)


def test_gpt_oss(tmp_path: Path) -> None:
    experts, outputs, inputs = 3, 40, 96
    codes = rng().integers(0, 16, (experts, outputs, inputs))
    exponents = rng().integers(100, 140, (experts, outputs, inputs // 32)).astype(np.uint8)
    blocks = pack_halves(codes).reshape(experts, outputs, inputs // 32, 16)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    bias = rng().standard_normal((experts, outputs)).astype(BF16)
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": exponents, f"{name}_bias": bias}
    model = lbrx.open(write_model(tmp_path / "m", tensors, {"quant_method": "mxfp4"}))
    values = E2M1[codes] * np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, axis=-1)
    assert sorted(model) == [name, f"{name}_bias"]
    assert_same(model[name], values.astype(BF16).transpose(0, 2, 1))


def test_blocks_across_rows(tmp_path: Path) -> None:
    weight = bitsandbytes(rng(), (32, 24), nested=True, block=64)
    assert_same(lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings))["l.weight"], weight.values)


def test_one_group_of_all_columns(tmp_path: Path) -> None:
    weight = gptq(rng(), (32, GROUP), act_order=False)
    settings = {**weight.settings, "group_size": -1}
    assert_same(lbrx.open(write_model(tmp_path / "m", named("l", weight), settings))["l.weight"], weight.values)


def test_exponents_as_scales(tmp_path: Path) -> None:
    codes = rng().standard_normal(SHAPE).astype(np.float32).astype(E4M3)
    exponents = rng().integers(100, 140, (SHAPE[0], SHAPE[1] // 32)).astype(np.uint8)
    exponents[0, 0], exponents[1, 0] = 0, 255  # subnormal, and NaN
    tensors = {"l.weight": codes, "l.weight_scale_inv": exponents}
    model = lbrx.open(write_model(tmp_path / "m", tensors, {"quant_method": "mxfp8"}, {"dtype": "float32"}))
    factors = np.exp2(np.minimum(exponents, 254).astype(np.float32) - 127)
    factors[1, 0] = np.nan
    np.testing.assert_array_equal(model["l.weight"].numpy(), codes.astype(np.float32) * np.repeat(factors, 32, axis=1))


@pytest.mark.parametrize("experts", [(), (3,)])
def test_pairs_of_four_bit_floats_in_fp8_models(experts: tuple[int, ...], tmp_path: Path) -> None:
    codes = rng().integers(0, 16, (*experts, *SHAPE))
    exponents = rng().integers(100, 140, (*experts, SHAPE[0], SHAPE[1] // 32)).astype(np.uint8)
    tensors = {"l.weight": pack_halves(codes).view(np.int8), "l.weight_scale": exponents}
    settings = {"quant_method": "fp8"}
    model = lbrx.open(write_model(tmp_path / "m", tensors, settings))
    factors = np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, axis=-1)
    assert_same(model["l.weight"], (E2M1[codes] * factors).astype(BF16))
    tensors["l.weight_scale"] = exponents[..., 1:, :].copy()
    with pytest.raises(FormatError, match=r"expected scales for the rows of \(.*48, 128\)"):
        lbrx.open(write_model(tmp_path / "few", tensors, settings))["l.weight"].numpy()


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "f16"), ("float32", "f32"), (None, "bf16")])
def test_the_config_names_the_dtype(dtype: str | None, expected: str, tmp_path: Path) -> None:
    weight = fp8(rng(), SHAPE)
    config: dict[str, Any] = {"dtype": None, "text_config": {"torch_dtype": dtype}}
    model = lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings, config))
    assert model["l.weight"].dtype.name == expected


def test_modules_that_are_not_quantized(tmp_path: Path) -> None:
    weight = fp8(rng(), SHAPE)
    plain = rng().standard_normal((4, 4)).astype(np.float32).astype(E4M3)
    settings = {**weight.settings, "modules_to_not_convert": ["head"]}
    model = lbrx.open(write_model(tmp_path / "m", {**named("l", weight), "head.weight": plain}, settings))
    assert model["head.weight"].type_name == "f8_e4m3"
    assert model["l.weight"].type_name == "bf16"


def test_names_are_found_as_written(tmp_path: Path) -> None:
    weight = gptq(rng(), SHAPE)
    model = lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings))
    assert model["l.weight"] is model["l.weight"]
    with pytest.raises(TensorNotFound, match=r"has no tensor 'l.weigt'; did you mean 'l.weight'"):
        model["l.weigt"]
    with pytest.raises(TensorNotFound, match=r"has no tensor 'l.qweight'"):
        model["l.qweight"]


def test_threads_and_chunks_do_not_change_the_values(tmp_path: Path) -> None:
    weight = gptq(rng(), SHAPE, bits=3)
    model = lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings))
    for threads, chunk in ((1, 100), (2, 1000), (2, 1 << 20)):
        with lbrx.using(threads=threads, chunk_elements=chunk):
            assert_same(model["l.weight"], weight.values)


@pytest.mark.parametrize("scheme", ["fp8 blocks", "gptq 3 bits v1, act-order", "compressed 4 bits"])
def test_the_numpy_device_decodes_them(scheme: str, tmp_path: Path) -> None:
    weight = SCHEMES[scheme](rng(), SHAPE)
    model = lbrx.open(write_model(tmp_path / "m", named("l", weight), weight.settings))
    with lbrx.using(device="numpy"):
        np.testing.assert_array_equal((model["l.weight"] * 2).numpy(), weight.values.astype(np.float32) * np.float32(2))


@pytest.mark.parametrize("scheme", ["fp8 blocks", "gptq 4 bits v1, act-order", "bitsandbytes nested", "bitnet"])
def test_a_cache_keeps_decoded_weights(scheme: str, tmp_path: Path) -> None:
    weights = {name: SCHEMES[scheme](rng(seed), SHAPE) for seed, name in enumerate(("a", "b"))}
    tensors = {name: part for module, weight in weights.items() for name, part in named(module, weight).items()}
    path = write_model(tmp_path / "m", tensors, weights["a"].settings)
    with lbrx.open(path, cache="1MiB") as model:
        for _ in range(3):
            for module, weight in weights.items():
                assert_same(model[f"{module}.weight"], weight.values)


@pytest.mark.parametrize("scheme", ["fp8 blocks", "gptq 4 bits v1, act-order", "awq", "bitsandbytes nested"])
def test_models_in_a_bucket(scheme: str, tmp_path: Path) -> None:
    weight = SCHEMES[scheme](rng(), SHAPE)
    path = write_model(tmp_path / "m", named("l", weight), weight.settings)
    bucket = fsspec.filesystem("memory")
    for file in path.iterdir():
        bucket.pipe_file(f"/quantized-{scheme[:3]}/{file.name}", file.read_bytes())
    assert_same(lbrx.open(f"memory://quantized-{scheme[:3]}")["l.weight"], weight.values)


def test_zeros_as_biases_of_gptq_are_left_out(tmp_path: Path) -> None:
    weight = gptq(rng(), SHAPE)
    biases = {"a.bias": np.zeros(SHAPE[0], np.float16), "b.bias": np.ones(SHAPE[0], np.float16)}
    model = write_model(tmp_path / "m", {**named("a", weight), **named("b", weight), **biases}, weight.settings)
    assert sorted(lbrx.open(model)) == ["a.weight", "b.bias", "b.weight"]


def test_modules_with_bits_of_their_own(tmp_path: Path) -> None:
    weights = {"a": gptq(rng(), SHAPE, bits=4), "b": gptq(rng(), SHAPE, bits=8), "c": gptq(rng(), (64, 128), bits=2)}
    tensors = {name: part for module, weight in weights.items() for name, part in named(module, weight).items()}
    settings = {**weights["a"].settings, "dynamic": {"b": {"bits": 8}, "c": {"bits": 2}}}
    model = lbrx.open(write_model(tmp_path / "m", tensors, settings))
    for module, weight in weights.items():
        assert_same(model[f"{module}.weight"], weight.values)


@pytest.mark.parametrize(("packing", "scheme"), [("auto_gptq", "gptq 4 bits v1, act-order"), ("auto_awq", "awq")])
def test_auto_round(packing: str, scheme: str, tmp_path: Path) -> None:
    weight = SCHEMES[scheme](rng(), SHAPE)
    settings = {
        "quant_method": "auto-round",
        "packing_format": f"auto_round:{packing}",
        "bits": 4,
        "group_size": GROUP,
        "sym": True,
    }
    assert_same(lbrx.open(write_model(tmp_path / "m", named("l", weight), settings))["l.weight"], weight.values)
    other = write_model(tmp_path / "n", named("l", weight), {**settings, "packing_format": "auto_round:llm_compressor"})
    with pytest.raises(FormatError, match="the method 'auto-round'"):
        lbrx.open(other)
