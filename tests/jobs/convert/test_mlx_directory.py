"""MLX directories: read, decoded, made from Hugging Face and GGUF models, and turned into GGUF."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.mlx_gguf import gguf_to_mlx, mlx_to_gguf
from lbrx.jobs.convert.mlx_units import LOSSLESS
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.mlx_modes import mode_of
from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx
from lbrx.tensors.codecs.mlx import MlxMode, dequantize, encoded_mlx
from support.tiny_models import MODEL_TYPES, write_model

NO_TOKENIZER: dict[str, Any] = {"tokenizer.ggml.model": "none"}


def written(contents: Contents, directory: Path) -> Path:
    """The model on disk, each tensor as its plan says."""
    directory.mkdir()
    tensors = {each.name: each.make() for each in contents.tensors}
    for each in contents.tensors:
        assert (tensors[each.name].type_name, tensors[each.name].shape) == (each.type_name, each.shape), each.name
    lbrx.save(directory / "model.safetensors", tensors, contents.metadata)
    (directory / "config.json").write_text(json.dumps(contents.config))
    return directory


def quantized_gguf(directory: Path, type_name: str) -> Contents:
    """The model as GGUF contents whose matrices are coded in a type; routers stay as they are."""
    contents = hf_to_gguf(read_contents(directory), tokenizer_metadata=NO_TOKENIZER)
    coded = [
        tensor.mapped(lambda values: values.quantize(type_name).realize(), type_name=type_name)
        if len(tensor.shape) > 1 and "gate_inp" not in tensor.name
        else tensor
        for tensor in contents.tensors
    ]
    return replace(contents, tensors=tuple(coded))


def values_of(contents: Contents) -> dict[str, np.ndarray]:
    return {each.name: each.make().dequantize().to("f32").numpy() for each in contents.tensors}


def assert_same_values(found: Contents, expected: Contents) -> None:
    assert set(found.by_name) == set(expected.by_name)
    wanted = values_of(expected)
    for name, values in values_of(found).items():
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_unquantized_there_and_back(model_type: str, tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "hf", model_type)
    made = hf_to_mlx(read_contents(directory))
    assert (made.format, made.metadata) == ("mlx", {"format": "mlx"})
    assert made.config is not None
    assert isinstance(made.config["tie_word_embeddings"], bool)
    assert not any(".experts." in name for name in made.by_name)
    back = mlx_to_hf(read_mlx(written(made, tmp_path / "mlx")))
    assert (back.format, back.metadata) == ("safetensors", {"format": "pt"})
    assert set(back.by_name) == set(arrays)
    for name, values in arrays.items():
        assert back.by_name[name].make().numpy().tobytes() == values.tobytes(), name


def test_defaults_of_tied_embeddings_are_written_down(tmp_path: Path) -> None:
    """Without the key, transformers takes a Llama for untied and mlx_lm for tied."""
    directory, _ = write_model(tmp_path / "hf", "llama")
    config = json.loads((directory / "config.json").read_text())
    del config["tie_word_embeddings"]
    (directory / "config.json").write_text(json.dumps(config))
    made = hf_to_mlx(read_contents(directory))
    assert made.config is not None
    assert made.config["tie_word_embeddings"] is False


def test_buffers_and_tied_heads_are_left_out_and_types_that_mlx_lacks_changed() -> None:
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    tensors = [PlannedTensor.of(name, lbrx.full((2, 3), 1.0, "f64")) for name in names]
    tensors.append(PlannedTensor.of("model.norm.weight", lbrx.full((3,), 1.0, "f8_e4m3")))
    made = hf_to_mlx(
        Contents("safetensors", tuple(tensors), config={"model_type": "qwen2", "tie_word_embeddings": True})
    )
    assert {t.name: (t.type_name, t.make().type_name) for t in made.tensors} == {
        "model.embed_tokens.weight": ("f32", "f32"),
        "model.norm.weight": ("bf16", "bf16"),
    }


def test_weights_that_are_coded_otherwise_are_refused() -> None:
    contents = Contents("safetensors", (), config={"model_type": "llama", "quantization_config": {"bits": 4}})
    with pytest.raises(lbrx.UsageError, match="quantized in a way of their own"):
        hf_to_mlx(contents)


def test_experts_must_be_complete() -> None:
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    with pytest.raises(lbrx.FormatError, match="number 0 is missing"):
        hf_to_mlx(Contents("safetensors", (PlannedTensor.of(name, lbrx.full((2, 3), 1.0, "f32")),)))


# -- GGUF to MLX ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", [name for name in LOSSLESS if not name.endswith("_k") and name != "nvfp4"])
def test_gguf_to_mlx_without_loss(type_name: str, tmp_path: Path) -> None:
    """Rows of queries and keys are permuted in a Llama: blocks move with them."""
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="f32")
    gguf = quantized_gguf(directory, type_name)
    made = gguf_to_mlx(gguf)
    assert made.warnings == ()
    assert made.config is not None
    mode = LOSSLESS[type_name].mode
    assert made.config["quantization"] == {"group_size": mode.group_size, "bits": mode.bits, "mode": mode.mode}
    assert made.config["quantization_config"] == made.config["quantization"]
    back = mlx_to_hf(read_mlx(written(made, tmp_path / "mlx")))
    expected = gguf_to_hf(gguf, type_name="f32" if mode.mode == "affine" else None)
    assert_same_values(back, expected)


@pytest.mark.parametrize("type_name", ["q4_k", "q5_k", "nvfp4"])
def test_super_blocks_to_mlx_without_loss(type_name: str, tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="f32", hidden_size=256, intermediate_size=256)
    gguf = quantized_gguf(directory, type_name)
    made = gguf_to_mlx(gguf)
    assert made.warnings == ()
    back = mlx_to_hf(read_mlx(written(made, tmp_path / "mlx")))
    assert_same_values(back, gguf_to_hf(gguf, type_name="f32"))


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_stacks_of_experts_stay_blocks(model_type: str, tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", model_type, type_name="f32")
    gguf = quantized_gguf(directory, "q8_0")
    made = gguf_to_mlx(gguf)
    stacks = [each for each in made.tensors if "switch_mlp" in each.name and each.name.endswith(".weight")]
    assert len(stacks) == 6
    assert {each.type_name for each in stacks} == {"u32"}
    back = mlx_to_hf(read_mlx(written(made, tmp_path / "mlx")))
    assert_same_values(back, gguf_to_hf(gguf, type_name="f32"))


def test_other_types_are_coded_again_and_the_error_is_told(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="f32", hidden_size=256, intermediate_size=256)
    gguf = quantized_gguf(directory, "q6_k")
    made = gguf_to_mlx(gguf)
    assert len(made.warnings) == 1
    warning = made.warnings[0]
    assert warning.startswith(
        "16 tensors of q6_k coded again as MLX affine with 8 bits in groups of 64: relative error "
    )
    back, expected = values_of(mlx_to_hf(made)), values_of(gguf_to_hf(gguf, type_name="f32"))
    matrices = [name for name, values in expected.items() if values.ndim > 1]
    difference = sum(float(((back[name] - expected[name]) ** 2).sum()) for name in matrices)
    error = 100 * (difference / sum(float((expected[name] ** 2).sum()) for name in matrices)) ** 0.5
    assert float(warning.split()[-1].rstrip("%")) == pytest.approx(error, rel=0.1)
    assert error < 1


def test_mixed_types_are_told_layer_by_layer(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="f32")
    gguf = quantized_gguf(directory, "q4_0")
    head = gguf.by_name["output.weight"]
    changed = head.mapped(lambda values: values.dequantize().quantize("q8_0").realize(), type_name="q8_0")
    made = gguf_to_mlx(replace(gguf, tensors=tuple(changed if each is head else each for each in gguf.tensors)))
    assert made.config is not None
    assert made.config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "lm_head": {"group_size": 32, "bits": 8, "mode": "affine"},
    }


# -- MLX to GGUF ------------------------------------------------------------------------------------------------------


def mlx_contents(directory: Path, mode: MlxMode, dtype_name: str) -> Contents:
    """A model whose matrices are coded as MLX does it."""
    plain = hf_to_mlx(read_contents(directory))
    tensors: list[PlannedTensor] = []
    for each in plain.tensors:
        if len(each.shape) < 2:
            tensors.append(each)
            continue
        parts = encoded_mlx(each.make().to(dtype_name), mode)
        module = each.name.removesuffix(".weight")
        named = {"weight": parts.weight, "scales": parts.scales, "biases": parts.biases}
        tensors += [PlannedTensor.of(f"{module}.{part}", t) for part, t in named.items() if t is not None]
    assert plain.config is not None
    settings = {"group_size": mode.group_size, "bits": mode.bits, "mode": mode.mode}
    return replace(plain, tensors=tuple(tensors), config={**plain.config, "quantization": settings})


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (MlxMode("affine", 4, 32), "q4_1"),
        (MlxMode("affine", 2, 64), "q4_1"),
        (MlxMode("affine", 5, 64), "q5_1"),
        (MlxMode("mxfp4", 4, 32), "mxfp4"),
    ],
)
def test_mlx_to_gguf_without_loss(mode: MlxMode, expected: str, tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="f16", intermediate_size=128)
    mlx = mlx_contents(directory, mode, "f16")
    found = mlx_to_gguf(mlx, tokenizer_metadata=NO_TOKENIZER)
    assert found.warnings == ()
    assert found.by_name["blk.0.attn_q.weight"].type_name == expected
    tensors = {each.name: each.make() for each in found.tensors}
    lbrx.save(tmp_path / "a.gguf", tensors, found.metadata)
    parts = mlx.by_name
    q_proj = "model.layers.0.self_attn.q_proj"
    biases = parts[f"{q_proj}.biases"].make() if mode.mode == "affine" else None
    decoded = dequantize(parts[f"{q_proj}.weight"].make(), parts[f"{q_proj}.scales"].make(), biases, mode)
    back = gguf_to_hf(read_contents(tmp_path / "a.gguf"), type_name="f32")
    np.testing.assert_array_equal(back.by_name[f"{q_proj}.weight"].make().numpy(), decoded.numpy())


def test_mlx_to_gguf_decodes_what_has_no_type(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="bf16", intermediate_size=128)
    mlx = mlx_contents(directory, MlxMode("affine", 6, 64), "bf16")
    found = mlx_to_gguf(mlx, tokenizer_metadata=NO_TOKENIZER)
    assert found.warnings == ("16 6-bit affine weights have no exact type in GGUF: now bf16",)
    assert found.by_name["output.weight"].type_name == "bf16"


def test_gguf_through_mlx_gives_the_same_bytes(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "mixtral", type_name="f32")
    gguf = quantized_gguf(directory, "q4_0")
    back = mlx_to_gguf(read_mlx(written(gguf_to_mlx(gguf), tmp_path / "mlx")), tokenizer_metadata=NO_TOKENIZER)
    coded = [name for name, each in gguf.by_name.items() if each.type_name == "q4_0"]
    assert len(coded) == 16
    for name in coded:
        found, expected = back.by_name[name].make(), gguf.by_name[name].make()
        assert found.type_name == "q4_0"
        np.testing.assert_array_equal(found.raw().numpy(), expected.raw().numpy(), err_msg=name)


# -- what can be wrong ------------------------------------------------------------------------------------------------


def coded_tensors(**changes: lbrx.Tensor | None) -> Contents:
    values = lbrx.tensor(np.ones((4, 64), np.float32))
    parts = encoded_mlx(values, MlxMode())
    assert parts.biases is not None
    named: dict[str, lbrx.Tensor | None] = {"weight": parts.weight, "scales": parts.scales, "biases": parts.biases}
    tensors = [PlannedTensor.of(f"lm_head.{part}", t) for part, t in (named | changes).items() if t is not None]
    return Contents("mlx", tuple(tensors), config={"quantization": {"group_size": 64, "bits": 4}})


def test_one_weight_is_decoded() -> None:
    (tensor,) = mlx_to_hf(coded_tensors()).tensors
    assert (tensor.name, tensor.type_name, tensor.shape) == ("lm_head.weight", "f32", (4, 64))
    np.testing.assert_allclose(tensor.make().numpy(), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": None}, "'lm_head.weight' is coded, but has no '.scales'"),
        ({"biases": None}, "coded as affine with none as biases"),
        ({"scales": lbrx.full((4, 2), 1.0, "f32")}, r"has shape \(4, 2\), expected \(4, 1\) for 4 bits"),
        ({"biases": lbrx.full((4, 2), 1.0, "f32")}, r"with those of shape \(4, 2\) as biases"),
        ({"scales": lbrx.full((4, 1), 1, "u8")}, "is u8, expected f32, f16 or bf16"),
        ({"global_scale": lbrx.full((1,), 1.0, "f32")}, "has a global scale"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(lbrx.FormatError, match=message):
        mlx_to_hf(coded_tensors(**changes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "'quantization' is None, expected an object"),
        ({"bits": 7, "group_size": 64}, "no affine encoding with 7 bits"),
        ({"bits": "4", "group_size": 64}, "expected numbers"),
        ({"mode": 3}, "the mode of 'a' is 3"),
        ({"mode": "fp6"}, "no encoding 'fp6'"),
    ],
)
def test_settings_that_make_no_sense(settings: Any, message: str) -> None:
    with pytest.raises(lbrx.FormatError, match=message):
        mode_of(settings, "a", "config.json")


def test_settings_of_modules() -> None:
    settings = {"group_size": 64, "bits": 4, "a": {"bits": 8}, "b": {"mode": "mxfp4", "bits": 4, "group_size": 32}}
    assert mode_of(settings, "a", "") == MlxMode("affine", 8, 64)
    assert mode_of(settings, "b", "") == MlxMode("mxfp4", 4, 32)
    assert mode_of(settings, "c", "") == MlxMode("affine", 4, 64)


def test_not_a_directory_of_mlx(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.full((4,), 1.0, "f32")})
    with pytest.raises(lbrx.FormatError, match="has the format gguf, expected an MLX directory"):
        read_mlx(tmp_path / "a.gguf")
