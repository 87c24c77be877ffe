"""Models to try things with: small random ones, made on the spot, and three trained ones that come with the package.

The random ones have the names and the config of Llama, weights in bf16, and 17 million parameters each. The trained
ones are language models of 1.4 million parameters: a base, and two fine-tunes of it on English prose and Python code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.output.save import save
from lbrx.tensors.creation import full, normal
from lbrx.tensors.tensor import Tensor

VOCABULARY = 4096
HIDDEN = 512
INTERMEDIATE = 1408
LAYERS = 4
BASE_SEED = 1
TUNING_SEED = 2
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
}


# -- random models -----------------------------------------------------------------------------------------------------


def llama_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors of a random model.

    >>> shapes = llama_shapes()
    >>> len(shapes), shapes["model.layers.3.mlp.down_proj.weight"]
    (39, (512, 1408))
    """
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (HIDDEN,)
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{prefix}self_attn.{projection}.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (HIDDEN,)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{prefix}mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    shapes["model.norm.weight"] = (HIDDEN,)
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return shapes


def base_tensors() -> dict[str, Tensor]:
    """A random base model: expressions that are computed when they are saved."""
    return {name: _weight(name, shape).to("bf16") for name, shape in llama_shapes().items()}


def _weight(name: str, shape: tuple[int, ...]) -> Tensor:
    if "norm" in name:
        return full(shape, 1.0, "f32")
    return normal(shape, BASE_SEED, name) / math.sqrt(HIDDEN)


def tuned_tensors(base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The base model with noise added to its matrices, more of it in later layers."""
    return {name: _tuned(name, tensor) for name, tensor in base.items()}


def _tuned(name: str, tensor: Tensor) -> Tensor:
    parts = name.split(".")
    if parts[:2] != ["model", "layers"] or tensor.ndim == 1:
        return tensor
    return (tensor + normal(tensor.shape, TUNING_SEED, name) * (0.002 * (int(parts[2]) + 1))).to("bf16")


def write_model(directory: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write the directory of a model, weights and config.json, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n")
    save(directory / "model.safetensors", tensors, {"format": "pt"})
    return directory


# -- trained models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DemoModels:
    """Where the trained models are, and the text that they have not seen."""

    base: Path
    prose: Path
    code: Path
    prose_text: Path
    code_text: Path


def demo_models() -> DemoModels:
    """The three models that come with the package.

    >>> demo_models().base.name, demo_models().prose_text.name
    ('base', 'prose.txt')
    """
    folder = Path(__file__).parent / "trained"
    return DemoModels(*(folder / name for name in ("base", "prose", "code", "prose.txt", "code.txt")))


def demo_recipes(models: DemoModels) -> dict[str, str]:
    """Merges of the two fine-tunes, as recipes by the name of their method."""
    base, prose, code = (json.dumps(str(path)) for path in (models.base, models.prose, models.code))

    def recipe(method: str, each: str, rest: str = "") -> str:
        inputs = "".join(f"  - {{model: {model}, parameters: {{{each}}}}}\n" for model in (prose, code))
        return f"merge_method: {method}\nmodels:\n{inputs}{rest}dtype: bfloat16\n"

    over_base = f"base_model: {base}\n"
    return {
        "linear": recipe("linear", "weight: 0.5"),
        "slerp": f"merge_method: slerp\nbase_model: {prose}\nmodels:\n  - model: {code}\nparameters: {{t: 0.5}}\n"
        "dtype: bfloat16\n",
        "task_arithmetic": recipe("task_arithmetic", "weight: 0.2", over_base),
        "ties": recipe("ties", "weight: 1.0, density: 0.7", f"{over_base}parameters: {{lambda: 0.3}}\n"),
        "dare_ties": recipe("dare_ties", "weight: 0.2, density: 0.9", over_base),
    }
