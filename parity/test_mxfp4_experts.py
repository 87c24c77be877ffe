"""The experts of a quantized gpt-oss model in GGUF: the file of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import peer_llama_cpp
import torch
from family_cases import all_cases
from peer_transformers import make_model
from safetensors.torch import load_file, save_file

import lbrx


def test_gguf_of_mxfp4_experts_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config, _ = make_model(all_cases()["gpt_oss"], folder)
    random = np.random.default_rng(2)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        codes = random.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        scales = random.integers(120, 128, (experts, outputs, inputs // 32), dtype=np.uint8)
        tensors |= {f"{name}_blocks": torch.from_numpy(codes), f"{name}_scales": torch.from_numpy(scales)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    peer_llama_cpp.write_tokenizer(folder, config["vocab_size"])
    assert peer_llama_cpp.convert(folder, tmp_path / "theirs.gguf")
    lbrx.convert(folder, tmp_path / "ours.gguf")
    assert stored(tmp_path / "ours.gguf") == stored(tmp_path / "theirs.gguf")


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    """The type and the bytes of each tensor."""
    tensors = {}
    for name, values in lbrx.open(path).items():
        storage = values.storage
        assert storage is not None
        tensors[name] = values.type_name, storage.read_at(0, storage.nbytes).tobytes()
    return tensors
