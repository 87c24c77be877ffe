"""Write ``models/`` and the first seeds: ``PYTHONPATH=src:tests python -m fuzz.make_seeds``."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

import lbrx
import support
from fuzz.gguf_parts import GgufParts
from fuzz.targets import MODELS, SEEDS
from lbrx.demo.models import demo_models
from lbrx.files.output.journal import Entry, Journal
from support.quantized_weights import SCHEMES, Quantized, named
from support.small_models import config as word_config
from support.tiny_models import MODEL_TYPES, tiny_arrays, tiny_config
from support.tokenizer_fixtures import byte_level_document, sentencepiece_bytes, sentencepiece_vocabulary

TINY = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 300, "moe_intermediate_size": 8, "head_dim": 8}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"


def seed(target: str, name: str, data: bytes) -> None:
    path = SEEDS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main() -> None:
    """Write all files anew."""
    shutil.rmtree(MODELS, ignore_errors=True)
    models()
    weights()
    quantized()
    tokenizers()
    texts()


def family_config(model_type: str) -> dict[str, Any]:
    config = tiny_config(model_type)
    return {**config, **{key: value for key, value in TINY.items() if key in config}}


def models() -> None:
    document = byte_level_document("llama-bpe", size=290)
    for model_type in MODEL_TYPES:
        directory = MODELS / model_type
        directory.mkdir(parents=True)
        config = family_config(model_type)
        tensors = {name: lbrx.tensor(array) for name, array in tiny_arrays(config).items()}
        lbrx.save(directory / "model.safetensors", tensors, {"format": "pt"})
        content = json.dumps(config, indent=1).encode()
        (directory / "config.json").write_bytes(content)
        seed("config", f"{model_type}.json", content)
        if model_type in ("llama", "mistral", "mixtral", "qwen3", "gemma2", "phi3"):
            (directory / "tokenizer.json").write_text(json.dumps(document))
            settings = {"bos_token": "<|begin_of_text|>", "chat_template": TEMPLATE}
            (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copytree(MODELS / "llama", MODELS / "other")
    sentencepiece_model()
    (MODELS / "sentencepiece" / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 64
    extra = {"rope_scaling": rope, "layer_types": ["full_attention"] * 2, "eos_token_id": [1, 2], "bos_token_id": 0}
    seed("config", "rope.json", json.dumps({**family_config("llama"), **extra}).encode())
    yarn = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    seed("config", "yarn.json", json.dumps({**family_config("qwen3"), "rope_parameters": yarn}).encode())
    mlx = {"group_size": 32, "bits": 4, "mode": "affine"}
    seed("config", "mlx.json", json.dumps({**family_config("llama"), "quantization": mlx}).encode())
    seed("config", "words.json", json.dumps(word_config("mistral")).encode())
    whole = lbrx.open(MODELS / "llama" / "model.safetensors")
    lbrx.save(MODELS / "sharded", dict(whole), max_shard_bytes=12_000)
    shutil.copy(MODELS / "llama" / "config.json", MODELS / "sharded")
    index = (MODELS / "sharded" / "model.safetensors.index.json").read_bytes()
    seed("index", "index.json", index)
    adapter()


def sentencepiece_model() -> None:
    directory = MODELS / "sentencepiece"
    directory.mkdir()
    config = {**family_config("llama"), "vocab_size": 400}
    tensors = {name: lbrx.tensor(array) for name, array in tiny_arrays(config).items()}
    lbrx.save(directory / "model.safetensors", tensors, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))


def adapter() -> None:
    directory = MODELS / "adapter"
    directory.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    patterns = {"rank_pattern": {"layers.1.self_attn.v_proj": 2}, "alpha_pattern": {r"layers\.[01].*q_proj": 8}}
    content = json.dumps({**config, **patterns, "use_rslora": False, "modules_to_save": None}).encode()
    (directory / "adapter_config.json").write_bytes(content)
    seed("adapter_config", "lora.json", content)
    tensors = {}
    for layer, (module, rows) in enumerate((("q_proj", 16), ("v_proj", 8))):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_"
        tensors[f"{prefix}A.weight"] = lbrx.full((2, 16), 1.0, "f32")
        tensors[f"{prefix}B.weight"] = lbrx.full((rows, 2), 0.5, "f32")
    lbrx.save(directory / "adapter_model.safetensors", tensors)
    seed("adapter", "lora.safetensors", (directory / "adapter_model.safetensors").read_bytes())


def weights() -> None:
    folder = SEEDS / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    tensors = {name: lbrx.tensor(values).to(name) for name in ("f32", "f16", "bf16", "i8", "u8", "i64", "f8_e4m3")}
    lbrx.save(folder / "types.safetensors", {**tensors, "packed": lbrx.tensor(values).to("i4")}, {"format": "pt"})
    lbrx.save(folder / "one.safetensors", {"w": tensors["f32"]})
    for name in ("types", "one"):
        seed("safetensors", name, (folder / f"{name}.safetensors").read_bytes())
    coded = {name: lbrx.tensor(values).quantize(name) for name in ("q8_0", "q4_0", "mxfp4")}
    plain = {name: tensors[name] for name in ("f32", "f16", "bf16")}
    metadata = {"general.architecture": "llama", "a.text": "x", "a.list": [1, 2], "a.texts": ["a", "b"], "a.f": 0.5}
    lbrx.save(folder / "types.gguf", {**coded, **plain}, metadata)
    seed("gguf", "types", (folder / "types.gguf").read_bytes())
    seed("gguf_split", "two", split_gguf(folder / "types.gguf"))
    for path in (support.GOLDEN / "pytorch").iterdir():
        if path.suffix in (".pt", ".bin"):
            seed("pytorch", path.name, path.read_bytes())
    entries = {"blk.0.attn_q.weight": 4, "blk.0.ffn_up.weight": 8}
    parts = [struct.pack("<i", len(entries))]
    for name, count in entries.items():
        parts.append(
            struct.pack("<i", len(name)) + name.encode() + struct.pack(f"<ii{count}f", 3, count, *range(count))
        )
    seed("imatrix", "legacy.dat", b"".join(parts) + struct.pack("<ii", 5, 4) + b"wiki")
    sums = {f"{name}.in_sum2": lbrx.full((1, count), 2.0, "f32") for name, count in entries.items()}
    counts = {f"{name}.counts": lbrx.full((1, 1), 2.0, "f32") for name in entries}
    described = {"general.type": "imatrix", "imatrix.datasets": ["wiki"], "imatrix.chunk_count": 5}
    lbrx.save(folder / "imatrix.gguf", {**sums, **counts}, described)
    seed("imatrix_gguf", "imatrix.gguf", (folder / "imatrix.gguf").read_bytes())
    for model_type in ("llama", "mixtral", "gemma3_text", "sentencepiece", "qwen3"):
        directory = folder / model_type
        shutil.copytree(MODELS / model_type, directory)
        if model_type == "sentencepiece":
            (directory / "tokenizer.model").write_bytes(sentencepiece_bytes(sentencepiece_vocabulary(size=40)))
        else:
            shutil.copy(MODELS / "llama" / "tokenizer.json", directory)
        try:
            lbrx.convert(directory, folder / f"{model_type}.gguf")
        except lbrx.LbrxError as error:
            print(model_type, error)
            continue
        content = (folder / f"{model_type}.gguf").read_bytes()
        assert GgufParts.parse(content).to_bytes() == content
        seed("gguf_model", f"{model_type}.gguf", content)
    shutil.rmtree(folder)


def quantized() -> None:
    """Two weights in each scheme, the config that describes them, and a model of MLX."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    config = {**family_config("llama"), **sizes, "head_dim": 8, "vocab_size": 290}
    folder = SEEDS / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    schemes = {**SCHEMES, "gpt_oss": gpt_oss, "fp8 powers": fp8_powers, "nvfp4 powers": nvfp4_powers}
    for number, (described, quantize) in enumerate(schemes.items()):
        scheme = described.replace(",", "").replace("-", "_").replace(" ", "_").replace("fp8_blocks", "fp8")
        rng, parts = np.random.default_rng(number), {}
        for module in ("q_proj", "o_proj"):
            weight = quantize(rng, (64, 64))
            parts |= named(f"model.layers.0.self_attn.{module}", weight)
        lbrx.save(folder / "w.safetensors", parts, {"format": "pt", "scheme": scheme})
        seed("quantized", f"{scheme}.safetensors", (folder / "w.safetensors").read_bytes())
        content = {**config, "scheme": scheme, "quantization_config": weight.settings}
        seed("quantization_config", f"{scheme}.json", json.dumps(content, indent=1).encode())
    tensors = {name: lbrx.tensor(array) for name, array in tiny_arrays(config).items()}
    lbrx.save(folder / "plain" / "model.safetensors", tensors, {"format": "pt"})
    (folder / "plain" / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "llama" / name, folder / "plain")
    lbrx.quantize(folder / "plain", MODELS / "mlx", to="mlx_4")
    for name in ("lbrx.checksums.json", "model.safetensors.index.json"):
        (MODELS / "mlx" / name).unlink()
    seed("mlx", "affine.safetensors", (MODELS / "mlx" / "model.safetensors").read_bytes())
    shutil.rmtree(folder)


def fp8_powers(rng: np.random.Generator, shape: tuple[int, int]) -> Quantized:
    """FP8 that is MXFP8, too."""
    weight = SCHEMES["fp8 blocks"](rng, shape)
    weight.parts[".weight_scale_inv"][:] = 0.5
    return weight


def nvfp4_powers(rng: np.random.Generator, shape: tuple[int, int]) -> Quantized:
    """NVFP4 whose scale is a power of two."""
    weight = SCHEMES["modelopt nvfp4"](rng, shape)
    weight.parts[".weight_scale_2"] = np.array(0.5, np.float32)
    return weight


def gpt_oss(rng: np.random.Generator, shape: tuple[int, int]) -> Quantized:
    """Two experts of MXFP4."""
    rows, columns = shape
    blocks = rng.integers(0, 256, (2, rows, columns // 32, 16)).astype(np.uint8)
    scales = rng.integers(100, 140, (2, rows, columns // 32)).astype(np.uint8)
    return Quantized({".down_proj_blocks": blocks, ".down_proj_scales": scales}, {"quant_method": "mxfp4"}, blocks)


def split_gguf(path: Path) -> bytes:
    """Two shards of a file, after the length of the first."""
    whole = GgufParts.parse(path.read_bytes())
    shards = []
    for number in range(2):
        infos = whole.infos[number::2]
        keys = [(b"split.no", 2, number), (b"split.count", 2, 2), (b"split.tensors.count", 5, len(whole.infos))]
        pairs = [*whole.pairs, *keys] if number == 0 else keys
        placed = [info._replace(offset=128 * place, sizes=(32,), type_id=0) for place, info in enumerate(infos)]
        head = GgufParts(pairs, placed, b"").to_bytes()
        data = bytes(-len(head) % 32) + bytes(128 * len(placed))
        shards.append(head + data)
    return len(shards[0]).to_bytes(4, "little") + b"".join(shards)


def tokenizers() -> None:
    for family in ("llama-bpe", "qwen2", "deepseek-v3"):
        try:
            seed("tokenizer_json", f"{family}.json", json.dumps(byte_level_document(family, size=270)).encode())
        except KeyError:
            print("no family", family)
    seed("sentencepiece", "bpe.model", sentencepiece_bytes(sentencepiece_vocabulary(size=40)))
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "{{ tools }}"}]
    added = {"0": {"content": "<|begin_of_text|>", "special": True}}
    settings = {"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|end_of_text|>", "add_bos_token": True}
    seed("tokenizer_config", "text.json", json.dumps({**settings, "chat_template": TEMPLATE}).encode())
    seed(
        "tokenizer_config",
        "named.json",
        json.dumps({**settings, "chat_template": named, "added_tokens_decoder": added}).encode(),
    )


def texts() -> None:
    recipes = {
        "linear": "merge_method: linear\nmodels:\n  - model: llama\n    parameters: {weight: 0.5}\n  - model: other\n"
        "    parameters:\n      weight: [0, 0.5, 1]\ndtype: bfloat16\nout_dtype: float16\n",
        "ties": "merge_method: ties\nbase_model: llama\nmodels:\n- model: other\n  parameters:\n    density: 0.5\n"
        "    weight:\n    - filter: mlp\n      value: 0.5\n    - value: 1\n"
        "parameters: {normalize: true, int8_mask: true}\ndtype: float32\n",
        "slices": "slices:\n- sources:\n  - {model: llama, layer_range: [0, 1]}\n- sources:\n"
        "  - {model: other, layer_range: [0, 2]}\nmerge_method: passthrough\ndtype: bfloat16\n",
        "tokenizer": "merge_method: linear\nmodels: [{model: llama, parameters: {weight: 1}}, {model: other, parameters: "
        "{weight: 2}}]\ntokenizer:\n  source: union\n  tokens:\n    <|im_end|>: {source: llama, force: true}\n"
        "  pad_to_multiple_of: 8\nchat_template: chatml\n",
        "several": "name: first\nmerge_method: slerp\nbase_model: llama\nmodels: [{model: other}]\n"
        "parameters: {t: &t [0, 1]}\n---\nmerge_method: passthrough\nmodels: [{model: first}]\n",
        "code": "merge_method: ./method.py:blend\nmodels: [{model: llama}, {model: other}]\n",
    }
    for name, text in recipes.items():
        seed("recipe", f"{name}.yml", text.encode())
    experts = "experts:\n  - source_model: llama\n    positive_prompts: [a, b]\n    negative_prompts: [c]\n  - source_model: other\n    positive_prompts: [d]\n"
    for mode in ("cheap_embed", "random", "uniform_random"):
        seed(
            "moe_recipe",
            f"{mode}.yml",
            f"base_model: llama\ngate_mode: {mode}\ndtype: bfloat16\narchitecture: mixtral\n{experts}".encode(),
        )
    path = Path("/tmp/journal-seed")
    with Journal(path, discard=True) as journal:
        journal.begin({"lbrx": "1", "seed": 1, "inputs": {"a": "x"}, "recipe": "r"})
        journal.add([Entry("w", "00ff"), Entry("v", "11", {"v": (1, 2)})])
        seed("journal", "half", path.read_bytes())
        journal.complete()
        seed("journal", "whole", path.read_bytes())
    path.unlink()
    for number, text in enumerate(
        (
            "https://user:secret@host:8080/models/a.gguf?X-Amz-Signature=abc#x",
            "s3://bucket/models/a.safetensors",
            "hf://owner/name@main/model.safetensors",
            "owner/name",
            "memory://a/../b",
            "./models/a",
        )
    ):
        seed("address", str(number), text.encode())
    info = {
        name: {"type": "file", "size": 12, "ETag": '"a"', "name": f"bucket/model/{name}"}
        for name in ("a.gguf", "config.json")
    }
    listing = {
        "ls": ["bucket/model/a.gguf", "bucket/model/config.json", "bucket/model/"],
        "info": info,
        "content": "{}",
    }
    seed("listing", "two.json", json.dumps(listing).encode())


if __name__ == "__main__":
    _ = demo_models  # the package's own models stay untouched
    main()
