"""Logits of every family against a plain decoder in f64, from files of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.ops import codec_products
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.inference import open_model
from support.numpy_decoder import reference_logits
from support.tiny_decoders import CONFIGS, VOCABULARY, tiny_arrays, tiny_config, write_tiny

IDS = [int(token) for token in np.random.default_rng(1).integers(0, VOCABULARY, 23)]
# Products of 96 terms in f32, 7 of them in a row per layer: a few units in the last place each.
RELATIVE = 2e-5


def assert_close(actual: npt.NDArray[Any], expected: npt.NDArray[Any], relative: float = RELATIVE) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * np.abs(expected).max()


def write_gguf(path: Path, contents: Contents) -> Path:
    lbrx.save(path, {tensor.name: tensor.make() for tensor in contents.tensors}, contents.metadata)
    return path


@pytest.mark.parametrize("model_type", CONFIGS)
def test_logits_are_those_of_the_formulas(model_type: str, tmp_path: Path) -> None:
    config = tiny_config(model_type)
    arrays = tiny_arrays(config)
    model = open_model(write_tiny(tmp_path, config, arrays))
    assert_close(model.logits(IDS), reference_logits(config, arrays, IDS))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_tokens_that_come_later_see_those_in_the_cache(model_type: str, tmp_path: Path) -> None:
    config = tiny_config(model_type)
    model = open_model(write_tiny(tmp_path, config, tiny_arrays(config)))
    cache = model.new_cache(capacity=4)
    pieces = [model.logits(piece, cache) for piece in (IDS[:7], IDS[7:8], IDS[8:20], IDS[20:])]
    assert cache.length == len(IDS)
    assert_close(np.concatenate(pieces), model.logits(IDS))


# GGUF files cannot say that mistral has a window, nor how gemma 2 scales its queries or which base windows turn by.
_IN_GGUF = {
    "mistral": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"rope_local_base_freq": 10_000.0, "layer_types": ["sliding_attention"] * 3},
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_gguf_form_gives_the_same(model_type: str, tmp_path: Path) -> None:
    config = tiny_config(model_type, **_IN_GGUF.get(model_type, {}))
    arrays = tiny_arrays(config)
    hf = write_tiny(tmp_path / "hf", config, arrays)
    gguf = write_gguf(tmp_path / "model.gguf", hf_to_gguf(read_contents(hf), tokenizer_metadata={}))
    assert_close(open_model(gguf).logits(IDS), reference_logits(config, arrays, IDS))


# Products of many vectors move activations by 2**-16 of the largest of a block, which these random layers make larger.
with_and_without_i16 = pytest.mark.parametrize(("by_words", "relative"), [(False, 1e-4), (True, 2e-3)])


@pytest.mark.parametrize("quantization", ["q8_0", "q5_1", "q4_0", "iq4_nl"])
@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
@with_and_without_i16
def test_quantized_weights_give_the_logits_of_what_they_stand_for(
    model_type: str,
    quantization: str,
    by_words: bool,
    relative: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moving the weights by 2e-5 of their size changes these logits by 7e-4."""
    monkeypatch.setattr(codec_products, "MULTIPLIES_PAIRS", by_words)
    config = tiny_config(model_type)
    hf = write_tiny(tmp_path / "hf", config, tiny_arrays(config))
    contents = hf_to_gguf(read_contents(hf), tokenizer_metadata={})
    plain = {tensor.name: tensor.make() for tensor in contents.tensors}
    coded = {name: tensor.quantize(quantization) if tensor.ndim > 1 else tensor for name, tensor in plain.items()}
    lbrx.save(tmp_path / "coded.gguf", coded, contents.metadata)
    stored = lbrx.open(tmp_path / "coded.gguf")
    decoded = {name: tensor.dequantize() for name, tensor in stored.items()}
    lbrx.save(tmp_path / "decoded.gguf", decoded, contents.metadata)
    ours, expected = (open_model(tmp_path / name).logits(IDS) for name in ("coded.gguf", "decoded.gguf"))
    assert_close(ours, expected, relative=relative)


def test_bf16_weights_are_used_as_they_are(tmp_path: Path) -> None:
    config = tiny_config("llama")
    model = open_model(write_tiny(tmp_path, config, tiny_arrays(config), "bf16"))
    rounded = {name: tensor.to("f32").numpy() for name, tensor in lbrx.open(tmp_path).items()}
    assert_close(model.logits(IDS), reference_logits(config, rounded, IDS))


@with_and_without_i16
def test_mlx_directories_run(by_words: bool, relative: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lbrx.jobs.quantize import quantize
    from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx

    monkeypatch.setattr(codec_products, "MULTIPLIES_PAIRS", by_words)
    config = tiny_config("llama")
    quantize(write_tiny(tmp_path / "hf", config, tiny_arrays(config)), tmp_path / "mlx", to="mlx_4", group_size=32)
    assert "quantization" in json.loads((tmp_path / "mlx" / "config.json").read_text())
    decoded = {tensor.name: tensor.make().numpy() for tensor in mlx_to_hf(read_mlx(tmp_path / "mlx")).tensors}
    assert_close(open_model(tmp_path / "mlx").logits(IDS), reference_logits(config, decoded, IDS), relative=relative)


@with_and_without_i16
def test_plain_integers_run(by_words: bool, relative: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lbrx.jobs.quantize import quantize

    monkeypatch.setattr(codec_products, "MULTIPLIES_PAIRS", by_words)
    config = tiny_config("qwen3")
    quantize(write_tiny(tmp_path / "hf", config, tiny_arrays(config)), tmp_path / "int8", to="int8", group_size=32)
    stored = lbrx.open(tmp_path / "int8")
    assert "int8" in {tensor.type_name for tensor in stored.values()}
    decoded = {name: tensor.numpy() for name, tensor in stored.items()}
    assert_close(open_model(tmp_path / "int8").logits(IDS), reference_logits(config, decoded, IDS), relative=relative)


def test_results_do_not_depend_on_threads(tmp_path: Path) -> None:
    config = tiny_config("gemma2")
    model = open_model(write_tiny(tmp_path, config, tiny_arrays(config), "bf16"))
    results = []
    for threads in (1, 2, 3):
        with lbrx.using(threads=threads):
            results.append(model.logits(IDS).tobytes())
    assert len(set(results)) == 1


def test_blocks_of_rows_make_up_the_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama")
    model = open_model(write_tiny(tmp_path, config, tiny_arrays(config)))
    whole = model.logits(IDS)
    monkeypatch.setattr("lbrx.models.inference.language_model._BLOCK_TOKENS", 6)
    monkeypatch.setattr("lbrx.models.inference.language_model._BLOCK_LOGIT_BYTES", 4 * 4 * VOCABULARY)
    blocks = list(model.logit_blocks(IDS, first_row=9))
    assert [first for first, _ in blocks] == [9, 12, 16, 18, 22]
    assert_close(np.concatenate([rows for _, rows in blocks]), whole[9:])


def test_no_tokens_have_no_logits(tmp_path: Path) -> None:
    config = tiny_config("llama")
    model = open_model(write_tiny(tmp_path, config, tiny_arrays(config)))
    assert model.logits([]).shape == (0, VOCABULARY)
