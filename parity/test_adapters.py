"""Adapters next to PEFT and llama.cpp: combined, converted, on experts that are one parameter."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from foreign_metal import LLAMA, package
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from support.transplant_models import FIRST_TEXT, tokenizer_of

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
TOKENS = [1, 5, 9, 77, 100, 3, 2, 64]


def make_base(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    torch.manual_seed(0)
    tokenizer = tokenizer_of(FIRST_TEXT, 300)
    config = AutoConfig.for_model(kind, **{**SMALL, "vocab_size": tokenizer.get_vocab_size(), **settings})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "base")
    tokenizer.save(str(folder / "base" / "tokenizer.json"))
    (folder / "base" / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return folder / "base"


def loaded(path: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def train(model: PeftModel, seed: int) -> PeftModel:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "token_adapter" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model


def make_adapter(base: Path, folder: Path, seed: int, **settings: Any) -> Path:
    whole = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], **settings}
    train(get_peft_model(loaded(base), LoraConfig(**whole)), seed).save_pretrained(folder)
    return folder


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.tensor([TOKENS])).logits.double().numpy()


def assert_equal(found: np.ndarray, expected: np.ndarray, share: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=share * np.abs(expected).max())


COMBINATIONS: dict[str, dict[str, Any]] = {
    "cat": {},
    "linear": {},
    "svd": {"svd_rank": 3},
    "ties": {"density": 0.5},
    "ties_svd": {"density": 0.5, "svd_rank": 6},
    "magnitude_prune": {"density": 0.3},
    "magnitude_prune_svd": {"density": 0.3},
    "frequency": {"density": 0.5, "majority_sign_method": "frequency"},
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_are_those_of_peft(name: str, tmp_path: Path) -> None:
    base, settings = make_base(tmp_path), COMBINATIONS[name]
    method = "ties" if name == "frequency" else name
    folders = [make_adapter(base, tmp_path / f"a{seed}", seed, lora_alpha=4 + 2 * seed) for seed in (1, 2, 3)]
    model = PeftModel.from_pretrained(loaded(base), folders[0], adapter_name="a0")
    for number, folder in enumerate(folders[1:], 1):
        model.load_adapter(folder, adapter_name=f"a{number}")
    weights = [0.7, 0.4, -0.3]
    model.add_weighted_adapter(["a0", "a1", "a2"], weights, "made", combination_type=method, **settings)
    model.set_adapter("made")
    options = {"rank": settings.get("svd_rank"), "density": settings.get("density")}
    signs = settings.get("majority_sign_method", "total")
    lbrx.combine_loras(folders, tmp_path / "ours", weights=weights, method=method, signs=signs, **options)
    found = PeftModel.from_pretrained(loaded(base), tmp_path / "ours")
    assert_equal(logits(found), logits(model), 1e-4)


def test_several_adapters_add_up_as_in_peft(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    folders = [make_adapter(base, tmp_path / f"a{seed}", seed) for seed in (1, 2)]
    model = PeftModel.from_pretrained(loaded(base), folders[0], adapter_name="a0")
    model.load_adapter(folders[1], adapter_name="a1")
    model.base_model.set_adapter(["a0", "a1"])
    lbrx.merge_lora(base, folders, tmp_path / "out")
    assert_equal(logits(loaded(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_parameters_of_experts_are_patched_as_in_peft(kind: str, tmp_path: Path) -> None:
    sizes = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    base = make_base(tmp_path, kind, head_dim=16, **sizes)
    targets = [f"mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
    adapter = make_adapter(base, tmp_path / "a", 1, target_modules=["q_proj"], target_parameters=targets)
    model = PeftModel.from_pretrained(loaded(base), adapter)
    lbrx.merge_lora(base, adapter, tmp_path / "out")
    assert_equal(logits(loaded(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("indices", [[4, 9, 1], {"embed_tokens": [7, 77]}])
def test_trained_rows_are_those_of_peft(indices: Any, tmp_path: Path) -> None:
    base = make_base(tmp_path)
    adapter = make_adapter(base, tmp_path / "a", 1, trainable_token_indices=indices)
    model = PeftModel.from_pretrained(loaded(base), adapter)
    lbrx.merge_lora(base, adapter, tmp_path / "out")
    assert_equal(logits(loaded(tmp_path / "out")), logits(model))


@cache
def converter() -> Path:
    """llama.cpp's script, from the source package of its Python binding."""
    archive = package(*LLAMA)
    target = archive.parent.parent / "llama-converter"
    parts = ("/convert_lora_to_gguf.py", "/conversion/", "/gguf-py/")
    with tarfile.open(archive) as file:
        wanted = [each for each in file.getmembers() if any(f"llama.cpp{part}" in each.name for part in parts)]
        file.extractall(target, wanted, filter="data")
    return next(target.glob("*/vendor/llama.cpp/convert_lora_to_gguf.py"))


def tensors_of(path: Path) -> dict[str, tuple[int, np.ndarray]]:
    return {tensor.name: (int(tensor.tensor_type), np.array(tensor.data)) for tensor in gguf.GGUFReader(path).tensors}


def value_of(path: Path, key: str) -> Any:
    field = gguf.GGUFReader(path).fields[key]
    value = field.parts[field.data[0]]
    return bytes(value).decode() if field.types[0] == gguf.GGUFValueType.STRING else value[0]


CONVERTED = [*((kind, "f32") for kind in ("llama", "qwen2", "qwen3", "gemma2", "mixtral", "qwen3_moe"))]
CONVERTED += [("llama", "f16"), ("llama", "bf16"), ("qwen3_moe", "f16")]


@pytest.mark.parametrize(("kind", "type_name"), CONVERTED)
def test_the_gguf_file_is_that_of_the_converter_of_llama_cpp(kind: str, type_name: str, tmp_path: Path) -> None:
    sizes = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    base = make_base(tmp_path, kind, head_dim=16, **(sizes if "mo" in kind or kind == "mixtral" else {}))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets += [] if sizes.keys() & vars(AutoConfig.from_pretrained(base)).keys() else ["gate_proj", "down_proj"]
    adapter = make_adapter(base, tmp_path / "a", 1, target_modules=targets)
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    script = [sys.executable, str(converter()), "--base", str(base), str(adapter)]
    done = subprocess.run([*script, "--outfile", str(theirs), "--outtype", type_name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lbrx.convert_lora(adapter, ours, base=base, type=type_name)
    expected, found = tensors_of(theirs), tensors_of(ours)
    assert found.keys() == expected.keys()
    for name, (tensor_type, values) in expected.items():
        assert found[name][0] == tensor_type, name
        np.testing.assert_array_equal(found[name][1], values, err_msg=name)
    for key in ("general.architecture", "general.type", "adapter.type", "adapter.lora.alpha"):
        assert value_of(ours, key) == value_of(theirs, key), key


def test_llama_cpp_computes_the_same_with_it(tmp_path: Path) -> None:
    base = make_base(tmp_path)
    adapter = make_adapter(base, tmp_path / "a", 1)
    lbrx.convert_lora(adapter, tmp_path / "a.gguf", base=base)
    lbrx.convert(base, tmp_path / "base.gguf", type="f32")
    expected = logits(PeftModel.from_pretrained(loaded(base), adapter))[0]
    settings = {"logits_all": True, "n_ctx": 64, "verbose": False, "n_gpu_layers": 0}
    model = llama_cpp.Llama(str(tmp_path / "base.gguf"), lora_path=str(tmp_path / "a.gguf"), **settings)
    model.eval(TOKENS)
    assert_equal(np.array(model.scores[: len(TOKENS)]), expected, 2e-3)
    lbrx.merge_lora(base, tmp_path / "a.gguf", tmp_path / "out")
    assert_equal(logits(loaded(tmp_path / "out"))[0], expected)
