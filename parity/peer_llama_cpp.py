"""llama.cpp's own converter and inference, applied to a directory with a tiny model.

The converter is in the source distribution of llama-cpp-python: LLAMA_CPP_SOURCE is the folder with
convert_hf_to_gguf.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

Values = npt.NDArray[np.float32]

IMAGE_BREAK = "[IMG_BREAK]"  # token 2
SPARE_ROWS = 16
CONTEXT = 256  # the smallest context of llama.cpp
# Tensors computed with a formula whose last bit depends on the library: their sums are compared, not their bytes.
INEXACT = ("ssm_a", "rope_freqs")
_NAMING = ("general.name", "general.basename", "general.finetune", "general.version", "general.size_label")
_OTHER = ("general.quantization_version", "general.file_type", "general.type", "general.tags", "general.languages")


def source() -> Path:
    """Return the folder of llama.cpp's sources."""
    given = os.environ.get("LLAMA_CPP_SOURCE")
    if not given or not (Path(given) / "convert_hf_to_gguf.py").is_file():
        raise SystemExit(
            "set LLAMA_CPP_SOURCE to vendor/llama.cpp of the unpacked source distribution of llama-cpp-python"
        )
    return Path(given)


_dropped: set[str] = set()  # keys that the converter does not see


@cache
def _conversion() -> Any:
    """Import the converter. It accepts any tokenizer, and sees keys that this version of transformers leaves out."""
    folder = source()
    sys.path[:0] = [str(folder / "gguf-py"), str(folder)]
    logging.disable(logging.WARNING)
    conversion = importlib.import_module("conversion")
    conversion.TextModel.get_vocab_base_pre = lambda _self, _tokenizer: "gpt-2"
    importlib.import_module("conversion.bert").NomicBertModel._is_tokenizer_xlmroberta = lambda _self: False
    usual = conversion.ModelBase.load_hparams

    def load_hparams(directory: Path, is_mistral_format: bool) -> dict[str, Any]:
        saved = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        found = {**saved, **usual(directory, is_mistral_format)}
        return {key: value for key, value in found.items() if key not in _dropped}

    conversion.ModelBase.load_hparams = staticmethod(load_hparams)
    _repair_baichuan(conversion)
    return conversion


def _repair_baichuan(conversion: Any) -> None:
    """Make the class of Baichuan ask its base class about most tensors; it asks itself without end."""
    baichuan = importlib.import_module("conversion.baichuan").BaichuanModel
    usual = baichuan.modify_tensors

    def modify_tensors(self: Any, data: Any, name: str, layer: int | None) -> Any:
        is_packed = name.endswith("W_pack.weight")
        yield from (usual if is_packed else conversion.TextModel.modify_tensors)(self, data, name, layer)

    baichuan.modify_tensors = modify_tensors


def write_tokenizer(directory: Path, rows: int) -> None:
    """Write a tokenizer with a token for each row of the embedding, or fewer if transformers adds some itself."""
    from transformers import AutoTokenizer

    _write_tokenizer(directory, rows)
    if max(AutoTokenizer.from_pretrained(directory).get_vocab().values()) >= rows:
        _write_tokenizer(directory, rows - SPARE_ROWS)


def _write_tokenizer(directory: Path, count: int) -> None:
    words = [chr(0x100 + number) for number in range(count - 4)]
    names = ("<s>", "</s>", IMAGE_BREAK)
    vocabulary = {token: number for number, token in enumerate([*names, *words, words[0] + words[1]])}
    special = [
        {"id": number, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for number, name in enumerate(names)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [f"{words[0]} {words[1]}"]},
    }
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def convert(
    directory: Path,
    out: Path,
    type_name: str = "f32",
    *,
    projector: bool = False,
    more: Mapping[str, float] | None = None,
    dropped: tuple[str, ...] = (),
) -> bool:
    """Write the GGUF file that llama.cpp makes of a model; return False if it does not know the architecture.

    ``more`` are further key-values. The converter does not see the ``dropped`` keys of the config.
    """
    conversion = _conversion()
    _dropped.clear()
    _dropped.update(dropped)
    gguf = importlib.import_module("gguf")
    file_type = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16}[type_name]
    kind = conversion.ModelType.MMPROJ if projector else conversion.ModelType.TEXT
    config = conversion.ModelBase.load_hparams(directory, False)
    try:
        model_class = conversion.get_model_class(conversion.get_model_architecture(config, kind), mmproj=projector)
    except NotImplementedError:
        return False
    model_class.no_mtp = not _predicts(directory)
    with torch.inference_mode(), contextlib.redirect_stderr(io.StringIO()):
        model = model_class(directory, file_type, out)
        if not projector:
            model.set_vocab = _forgiving(model)
        for key, value in (more or {}).items():
            model.gguf_writer.add_float32(key, value)
        model.write()
    return True


def _predicts(directory: Path) -> bool:
    """Return whether a model has tensors for predicting further tokens, which transformers does not load."""
    with safe_open(directory / "model.safetensors", "np") as file:
        return any(name.startswith(("mtp.", "model.mtp.")) for name in file.keys())  # noqa: SIM118


def _forgiving(model: Any) -> Any:
    """Return a replacement of ``set_vocab`` that writes the tiny tokenizer if the usual one is missing."""
    usual = model.set_vocab

    def set_vocab() -> None:
        try:
            usual()
        except (Exception, SystemExit):
            model._set_vocab_gpt2()

    return set_vocab


def described(path: Path, bf16_path: Path) -> dict[str, Any]:
    """Return the metadata and the tensors of a GGUF file: type, shape and digest; and which stay f32 in bf16."""
    gguf = importlib.import_module("gguf")
    reader = gguf.GGUFReader(path)
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        if any(part in tensor.name for part in INEXACT):
            values = np.asarray(tensor.data, np.float64)
            content: Any = [float(f"{values.sum():.8g}"), float(f"{np.abs(values).sum():.8g}")]
        else:
            content = digest(np.ascontiguousarray(tensor.data).tobytes())
        tensors[tensor.name] = [tensor.tensor_type.name.lower(), shape, content]
    kept = [each.name for each in gguf.GGUFReader(bf16_path).tensors if each.tensor_type.name == "F32"]
    return {"metadata": _metadata(reader), "tensors": tensors, "f32_in_bf16": kept}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _metadata(reader: Any) -> dict[str, Any]:
    ignored = (*_NAMING, *_OTHER)
    return {
        name: _value(field.contents())
        for name, field in reader.fields.items()
        if not name.startswith(("tokenizer.", "GGUF.", "general.base_model", "general.license")) and name not in ignored
    }


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.8g}")
    return [_value(each) for each in value] if isinstance(value, list) else value


def logits(path: Path, ids: list[int]) -> Values:
    """Return what llama.cpp computes, with keys and values in f32."""
    from llama_cpp import GGML_TYPE_F32, Llama

    cache_types = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
    model = Llama(str(path), n_ctx=CONTEXT, logits_all=True, verbose=False, n_threads=2, **cache_types)
    model.eval(ids)
    values = np.array(model.scores[: len(ids)], np.float32)
    model.close()
    return values
