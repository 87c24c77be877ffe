"""The inputs and the jobs of a soak: small models, and commands that write each output from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lbrx

HIDDEN, WIDE, VOCABULARY, LAYERS = 256, 512, 300, 4
_BLOCK = 64  # of FP8
_TOKENIZER = Path(__file__).parents[1] / "fuzz/models/llama"  # a small one of the same vocabulary
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_RECIPE = """merge_method: {method}
base_model: base
models:
  - {{model: a, parameters: {{weight: 0.7{parameters}}}}}
  - {{model: b, parameters: {{weight: 0.4{parameters}}}}}
"""
_METHODS = {
    "task_arithmetic": "",
    "ties": ", density: 0.5",
    "dare_ties": ", density: 0.6",
    "della": ", density: 0.6, epsilon: 0.1",
    "breadcrumbs": ", density: 0.8, gamma: 0.1",
    "dare_linear": ", density: 0.5",
}


@dataclass(frozen=True)
class Job:
    """``arguments`` of lbrx, or "save" with the input; ``out`` is the name of the output. The input is the folder."""

    name: str
    arguments: tuple[str, ...]
    out: str
    options: tuple[str, ...] = ()
    is_split: bool = False  # several files beside each other

    @property
    def has_run_options(self) -> bool:
        return self.arguments[0] != "save"


def _recipe_job(method: str) -> Job:
    return Job(f"merge {method}", ("merge", f"{method}.yml"), "out")


def _merge_job(method: str, *options: str) -> Job:
    return Job(f"merge {method}", ("merge", "a", "b", "--method", method, *options, "--out"), "out")


JOBS = (
    _merge_job("linear", "--weight", "0.6,0.4"),
    _merge_job("slerp", "--base", "a", "--set", "t=0.4"),
    _merge_job("model_stock", "--base", "base"),
    *map(_recipe_job, _METHODS),
    Job("merge sharded", ("merge", "ties.yml"), "out", ("--shard-size", "2MB")),
    Job("merge to gguf", ("merge", "ties.yml"), "out.gguf", ("--quantize", "q4_k_m")),
    Job("merge to mlx", ("merge", "ties.yml"), "out", ("--format", "mlx", "--quantize", "mlx_4")),
    Job("merge fp8", ("merge", "fp8-a", "fp8-b", "--method", "linear", "--weight", "0.5", "--out"), "out"),
    Job(
        "merge fp8 to fp8",
        ("merge", "fp8-a", "fp8-b", "--method", "linear", "--weight", "0.5", "--out"),
        "out",
        ("--quantize", "same"),
    ),
    Job("convert fp8 to gguf", ("convert", "fp8-a"), "out.gguf"),
    Job("convert fp8 to mlx", ("convert", "fp8-a"), "out", ("--format", "mlx")),
    Job("convert to gguf", ("convert", "a"), "out.gguf"),
    Job("convert to mlx", ("convert", "a"), "out", ("--format", "mlx")),
    Job("convert to bf16", ("convert", "a"), "out", ("--type", "bf16", "--shard-size", "1MB")),
    Job("convert from gguf", ("convert", "a.gguf"), "out", ("--format", "safetensors")),
    Job("quantize q4_k_m", ("quantize", "a"), "out.gguf", ("--to", "q4_k_m")),
    Job("quantize q8_0 split", ("quantize", "a"), "out.gguf", ("--to", "q8_0", "--shard-size", "1MB"), is_split=True),
    Job("quantize mlx_4", ("quantize", "a"), "out", ("--to", "mlx_4")),
    Job("quantize int8", ("quantize", "a"), "out", ("--to", "int8")),
    Job("save", ("save", "a"), "out.safetensors"),
)


def make_inputs(folder: Path) -> None:
    """Write three models, each also in FP8, a GGUF file and the recipes into a folder."""
    folder.mkdir(parents=True)
    for seed, name in enumerate(("base", "a", "b")):
        _write_model(folder / name, seed)
        _write_model(folder / f"fp8-{name}", seed, is_quantized=True)
    lbrx.convert(folder / "a", folder / "a.gguf")
    for method, parameters in _METHODS.items():
        (folder / f"{method}.yml").write_text(_RECIPE.format(method=method, parameters=parameters))


def _write_model(path: Path, seed: int, is_quantized: bool = False) -> None:
    path.mkdir()
    random = np.random.default_rng(seed)
    tensors = {
        name: lbrx.tensor((random.standard_normal(shape) / 8).astype(np.float32)) for name, shape in _shapes().items()
    }
    config: dict[str, object] = dict(_CONFIG)
    if is_quantized:
        config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [_BLOCK, _BLOCK]}
        for name in [each for each in tensors if each.endswith("proj.weight")]:
            grid = [size // _BLOCK for size in tensors[name].shape]
            tensors[name] = tensors[name].to("f8_e4m3")
            tensors[f"{name}_scale_inv"] = lbrx.full(
                grid, 0.5, "f32"
            )  # a power of two: MXFP8 of MLX has the same values
    lbrx.save(path / "model.safetensors", tensors, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_bytes((_TOKENIZER / file).read_bytes())


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    rows = {"q_proj": HIDDEN, "k_proj": HIDDEN // 2, "v_proj": HIDDEN // 2, "o_proj": HIDDEN}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}.weight": (size, HIDDEN) for name, size in rows.items()}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (WIDE, HIDDEN) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, WIDE)
        shapes |= {f"{prefix}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return {**shapes, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
