"""Hugging Face to GGUF and back: the bytes of every tensor, the config, and files without lbrx's own keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_gguf import mlx_to_gguf
from lbrx.jobs.convert.model_card import card_metadata
from lbrx.jobs.convert.reading import read_contents
from support.tiny_models import MODEL_TYPES, write_model

NO_TOKENIZER: dict[str, Any] = {"tokenizer.ggml.model": "none"}


def saved(contents: Contents, path: Path, **options: Any) -> Path:
    tensors = {each.name: each.make() for each in contents.tensors}
    for each in contents.tensors:
        assert (tensors[each.name].type_name, tensors[each.name].shape) == (each.type_name, each.shape)
    lbrx.save(path, tensors, contents.metadata, **options)
    return path


def to_gguf(directory: Path, path: Path, **options: Any) -> Contents:
    """The model as a GGUF file, written and read again."""
    made = hf_to_gguf(read_contents(directory), tokenizer_metadata=NO_TOKENIZER, **options)
    return read_contents(saved(made, path))


def without_own_keys(contents: Contents) -> Contents:
    """The same model as llama.cpp would have written it."""
    assert isinstance(contents.metadata, GgufMetadata)
    kept = {key: value for key, value in contents.metadata.typed().items() if not key.startswith("lbrx.")}
    return Contents("gguf", contents.tensors, GgufMetadata(kept), sources=contents.sources)


def assert_same_bytes(contents: Contents, expected: dict[str, Any]) -> None:
    assert set(contents.by_name) == set(expected)
    for name, values in expected.items():
        found = contents.by_name[name].make().numpy()
        assert (found.dtype, found.shape) == (values.dtype, values.shape), name
        assert found.tobytes() == values.tobytes(), name


@pytest.mark.parametrize("type_name", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_round_trip_gives_the_original_bytes_and_config(tmp_path: Path, model_type: str, type_name: str) -> None:
    directory, arrays = write_model(tmp_path / "hf", model_type, type_name=type_name)
    back = gguf_to_hf(to_gguf(directory, tmp_path / "a.gguf"))
    assert back.format == "safetensors"
    assert back.config == json.loads((directory / "config.json").read_text())
    assert_same_bytes(back, arrays)
    lbrx.save(tmp_path / "back.safetensors", {each.name: each.make() for each in back.tensors}, back.metadata)
    assert dict(lbrx.open(tmp_path / "back.safetensors").metadata) == {"format": "pt"}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_f32_files_of_bf16_models_come_back_as_bf16(tmp_path: Path, model_type: str) -> None:
    directory, arrays = write_model(tmp_path / "hf", model_type)
    made = to_gguf(directory, tmp_path / "a.gguf", type_name="f32")
    assert {each.type_name for each in made.tensors} == {"f32"}
    assert_same_bytes(gguf_to_hf(made), arrays)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_files_without_own_keys_give_a_config_and_the_same_weights(tmp_path: Path, model_type: str) -> None:
    directory, arrays = write_model(tmp_path / "hf", model_type)
    back = gguf_to_hf(without_own_keys(to_gguf(directory, tmp_path / "a.gguf")))
    original = json.loads((directory / "config.json").read_text())
    assert back.config is not None
    renamed = {"mistral": "llama"}
    expected = {**original, "model_type": renamed.get(model_type, model_type)}
    shared = set(expected) & set(back.config) - {"architectures"}
    assert {key: back.config[key] for key in shared} == {key: expected[key] for key in shared}
    assert {"hidden_size", "vocab_size", "rms_norm_eps", "rope_theta", "torch_dtype"} <= shared
    if not model_type.startswith("gemma"):
        assert_same_bytes(back, arrays)
        return
    for name, values in arrays.items():  # tiny norm weights lose bits when 1 is added
        np.testing.assert_allclose(back.by_name[name].make().numpy().astype(float), values.astype(float), atol=1e-7)


def test_norms_of_gemma_with_tiny_weights_come_back_exactly(tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "hf", "gemma2", type_name="f32")
    arrays["model.norm.weight"] = np.logspace(-40, 3, 64).astype(np.float32)
    tensors = {name: lbrx.tensor(values) for name, values in arrays.items()}
    lbrx.save(directory / "model.safetensors", tensors, {"format": "pt"})
    assert_same_bytes(gguf_to_hf(to_gguf(directory, tmp_path / "a.gguf")), arrays)


def test_a_stored_head_that_is_tied_comes_back(tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "hf", "qwen2")
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    lbrx.save(directory / "model.safetensors", {name: lbrx.tensor(values) for name, values in arrays.items()})
    made = to_gguf(directory, tmp_path / "a.gguf")
    assert "output.weight" not in made.by_name
    assert_same_bytes(gguf_to_hf(made), arrays)


def test_tensors_of_another_type_come_back_in_it(tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "hf", "qwen3_moe")
    name = "model.layers.1.mlp.gate.weight"
    arrays[name] = arrays[name].astype(np.float32)
    lbrx.save(directory / "model.safetensors", {key: lbrx.tensor(values) for key, values in arrays.items()})
    assert_same_bytes(gguf_to_hf(to_gguf(directory, tmp_path / "a.gguf")), arrays)


def test_changed_key_values_win_over_the_stored_config(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama")
    made = to_gguf(directory, tmp_path / "a.gguf")
    metadata = {**made.metadata, "llama.block_count": 1}
    kept = tuple(each for each in made.tensors if not each.name.startswith("blk.1."))
    back = gguf_to_hf(Contents("gguf", kept, metadata))
    assert back.config is not None
    assert back.config["num_hidden_layers"] == 1
    assert "key-values were changed" in back.warnings[0]


def test_split_files_convert_like_whole_ones(tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "hf", "mixtral")
    made = hf_to_gguf(read_contents(directory), tokenizer_metadata=NO_TOKENIZER)
    saved(made, tmp_path / "a.gguf", max_shard_bytes=100_000)
    first = min(tmp_path.glob("a-00001-of-*.gguf"))
    contents = read_contents(first)
    assert len(contents.sources) > 2
    assert not any(key.startswith("split.") for key in contents.metadata)
    assert_same_bytes(gguf_to_hf(contents), arrays)


@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_quantized_files_come_back_as_the_values_of_their_blocks(tmp_path: Path, model_type: str) -> None:
    directory, arrays = write_model(tmp_path / "hf", model_type)
    made = to_gguf(directory, tmp_path / "a.gguf")
    quantized = {
        each.name: each.make().quantize("q8_0") if len(each.shape) > 1 else each.make() for each in made.tensors
    }
    lbrx.save(tmp_path / "q.gguf", quantized, made.metadata)
    contents = read_contents(tmp_path / "q.gguf")
    decoded = gguf_to_hf(contents, type_name="f32")
    kept = gguf_to_hf(contents, keep_quantized=True)
    for name, values in arrays.items():
        expected = lbrx.tensor(values.astype(np.float32))
        if values.ndim > 1:
            expected = expected.quantize("q8_0")
            assert kept.by_name[name].type_name == "q8_0"
            raw = kept.by_name[name].make().raw().numpy()
            assert raw.tobytes() == expected.realize().raw().numpy().tobytes(), name
        np.testing.assert_array_equal(decoded.by_name[name].make().numpy(), expected.numpy(), err_msg=name)
    assert decoded.config is not None
    assert decoded.config["torch_dtype"] == "float32"
    bf16 = gguf_to_hf(without_own_keys(contents))
    assert {each.type_name for each in bf16.tensors} == {"bf16"}


def test_quantized_blocks_go_to_gguf_as_they_are(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "mixtral")
    made = to_gguf(directory, tmp_path / "a.gguf")
    quantized = {
        each.name: each.make().quantize("q4_0") if len(each.shape) > 1 else each.make() for each in made.tensors
    }
    lbrx.save(tmp_path / "q.gguf", quantized, made.metadata)
    contents = read_contents(tmp_path / "q.gguf")
    again = hf_to_gguf(gguf_to_hf(contents, keep_quantized=True), tokenizer_metadata=NO_TOKENIZER)
    for name, planned in contents.by_name.items():
        if "ffn_gate_inp" in name:
            assert again.by_name[name].type_name == "f32"
        else:
            found = again.by_name[name].make().realize()
            assert found.type_name == planned.type_name
            assert found.raw().numpy().tobytes() == planned.make().raw().numpy().tobytes(), name


def test_names_and_licence_survive_in_a_model_card(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "hf", "llama", type_name="bf16")
    first = to_gguf(directory, tmp_path / "a.gguf")
    said = {
        "general.name": "A model",
        "general.organization": "Someone",
        "general.basename": "model",
        "general.license": "apache-2.0",
        "general.languages": ["en", "de"],
    }
    assert isinstance(first.metadata, GgufMetadata)
    lbrx.save(tmp_path / "b.gguf", {each.name: each.make() for each in first.tensors}, {**first.metadata, **said})
    lbrx.convert(tmp_path / "b.gguf", tmp_path / "back")
    assert "license: apache-2.0" in (tmp_path / "back" / "README.md").read_text()
    lbrx.convert(tmp_path / "b.gguf", tmp_path / "mlx", format="mlx")
    for source in ("back", "mlx"):
        step = hf_to_gguf if source == "back" else mlx_to_gguf
        metadata = step(read_contents(tmp_path / source), tokenizer_metadata=NO_TOKENIZER).metadata
        assert {key: metadata[key] for key in said} == said


@pytest.mark.parametrize("text", ["", "# A model", "---\nlicense: [a\n---\n", "---\n- a\n---\n", "---\nlicense: 3\n"])
def test_cards_that_are_not_understood_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert card_metadata(tmp_path) == {}
